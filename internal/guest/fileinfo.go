package guest

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

const (
	maxPageItems  = 1000
	maxAttributes = 4096
	maxAttribute  = 64 << 10 // bytes of a value
	maxName       = 255      // of an attribute, and of an owner
	maxCursor     = 8192
	maxShownPath  = 32 << 10 // bytes that are not UTF-8 become three each
)

var (
	sumPattern    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	modePattern   = regexp.MustCompile(`^[0-7]{4}$`)
	cursorPattern = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)
)

// checkStored checks the answer to a PUT of length bytes.
func checkStored(raw []byte, length int64) (Stored, error) {
	var s apiv1.WrittenFile
	if err := json.Unmarshal(raw, &s); err != nil {
		return Stored{}, faultf("an answer that is not JSON")
	}
	if s.SizeBytes < 0 || length >= 0 && s.SizeBytes != length || !sumPattern.MatchString(s.SHA256) || !path.IsAbs(s.Path) {
		return Stored{}, faultf("stored %d of %d bytes, sum %.80q", s.SizeBytes, length, s.SHA256)
	}
	return Stored{Path: cleanTo(s.Path, maxPath), SizeBytes: s.SizeBytes, SHA256: s.SHA256}, nil
}

// checkUnpacked checks the answer to an archive.
func checkUnpacked(raw []byte) (apiv1.UnpackedArchive, error) {
	var u apiv1.UnpackedArchive
	if err := json.Unmarshal(raw, &u); err != nil {
		return u, faultf("an answer that is not JSON")
	}
	if u.Entries < 0 || u.SizeBytes < 0 || !path.IsAbs(u.Path) {
		return apiv1.UnpackedArchive{}, faultf("unpacked %d entries of %d bytes", u.Entries, u.SizeBytes)
	}
	return apiv1.UnpackedArchive{Path: cleanTo(u.Path, maxPath), Entries: u.Entries, SizeBytes: u.SizeBytes}, nil
}

// checkList checks a page and each entry of it.
func checkList(raw []byte) (apiv1.FileList, error) {
	var page apiv1.FileList
	if err := json.Unmarshal(raw, &page); err != nil {
		return page, faultf("an answer that is not JSON")
	}
	if len(page.Items) > maxPageItems || len(page.NextCursor) > maxCursor || !cursorPattern.MatchString(page.NextCursor) {
		return apiv1.FileList{}, faultf("a page of %d entries, cursor %.80q", len(page.Items), page.NextCursor)
	}
	out := apiv1.FileList{Items: make([]apiv1.FileInfo, 0, len(page.Items)), NextCursor: page.NextCursor}
	for _, item := range page.Items {
		info, err := checkInfo(item)
		if err != nil {
			return apiv1.FileList{}, err
		}
		out.Items = append(out.Items, info)
	}
	return out, nil
}

// checkInfo rebuilds one entry. Paths and attributes are the guest's to choose, and stay as they are but for their
// length: JSON carries them safely, and whoever shows them takes care of its terminal.
func checkInfo(in apiv1.FileInfo) (apiv1.FileInfo, error) {
	switch in.Type {
	case apiv1.FileTypeFile, apiv1.FileTypeDirectory, apiv1.FileTypeSymlink, apiv1.FileTypeFIFO, apiv1.FileTypeSocket,
		apiv1.FileTypeCharDevice, apiv1.FileTypeBlockDevice:
	default:
		return apiv1.FileInfo{}, faultf("file type %.40q", in.Type)
	}
	if !path.IsAbs(in.Path) || !isText(in.Path, maxShownPath) || in.SizeBytes < 0 || !modePattern.MatchString(in.Mode) {
		return apiv1.FileInfo{}, faultf("file %.100q of %d bytes, mode %.20q", in.Path, in.SizeBytes, in.Mode)
	}
	if y := in.ModifiedAt.UTC().Year(); y < 0 || y > 9999 {
		return apiv1.FileInfo{}, faultf("a file changed in the year %d", y)
	}
	out := apiv1.FileInfo{Path: in.Path, Type: in.Type, SizeBytes: in.SizeBytes, Mode: in.Mode, UID: in.UID, GID: in.GID,
		Owner: cleanTo(in.Owner, maxName), ModifiedAt: in.ModifiedAt.UTC().Round(time.Nanosecond), XAttrs: map[string]string{}}
	if in.SymlinkTarget != nil {
		if in.Type != apiv1.FileTypeSymlink || !isText(*in.SymlinkTarget, maxShownPath) {
			return apiv1.FileInfo{}, faultf("a %s that leads to %.100q", in.Type, *in.SymlinkTarget)
		}
		to := *in.SymlinkTarget
		out.SymlinkTarget = &to
	}
	return out, checkAttributes(in, &out)
}

func checkAttributes(in apiv1.FileInfo, out *apiv1.FileInfo) error {
	if len(in.XAttrs)+len(in.XAttrsB64) > maxAttributes {
		return faultf("a file with %d attributes", len(in.XAttrs)+len(in.XAttrsB64))
	}
	for name, value := range in.XAttrs {
		if !isText(name, maxName) || !isText(value, maxAttribute) {
			return faultf("attribute %.60q", name)
		}
		out.XAttrs[name] = value
	}
	for name, value := range in.XAttrsB64 {
		raw, err := base64.StdEncoding.DecodeString(value)
		if err != nil || !isText(name, maxName) || len(raw) > maxAttribute {
			return faultf("attribute %.60q", name)
		}
		if out.XAttrsB64 == nil {
			out.XAttrsB64 = map[string]string{}
		}
		out.XAttrsB64[name] = base64.StdEncoding.EncodeToString(raw)
	}
	return nil
}

func isText(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}
