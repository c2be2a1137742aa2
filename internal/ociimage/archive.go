package ociimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"path"
	"runtime"
	"slices"
	"strings"
)

// maxMembers bounds the members of an archive: a few for each layer of a few images.
const maxMembers = 8192

// archive finds the members of an uncompressed tar without reading their contents.
type archive struct {
	r       io.ReaderAt
	limits  Limits
	members map[string]member
	links   map[string]string
}

type member struct{ offset, size int64 }

func openArchive(r io.ReaderAt, size int64, limits Limits) (*archive, error) {
	a := &archive{r: r, limits: limits, members: map[string]member{}, links: map[string]string{}}
	section := io.NewSectionReader(r, 0, size)
	for tr, n := tar.NewReader(section), 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err != nil {
			return nil, refuse("it is not a tar archive of an image: %v", err)
		}
		if n == maxMembers {
			return nil, refuse("the archive has more than %d members", maxMembers)
		}
		at, err := section.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if err := a.add(h, at, size); err != nil {
			return nil, err
		}
	}
}

func (a *archive) add(h *tar.Header, at, size int64) error {
	name := memberName(h.Name)
	switch h.Typeflag {
	case tar.TypeReg:
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return refuse("the archive has sparse members")
			}
		}
		if h.Size < 0 || at > size-h.Size {
			return refuse("the archive is cut off")
		}
		a.members[name] = member{at, h.Size}
	case tar.TypeSymlink: // docker save writes a layer that two images share once
		a.links[name] = memberName(path.Join(path.Dir(name), h.Linkname)) //nolint:gosec // a key to members of the archive; never a path of a file system
	case tar.TypeDir, tar.TypeXGlobalHeader:
	default:
		return refuse("the archive has a member of type %q", h.Typeflag)
	}
	return nil
}

func memberName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func (a *archive) has(name string) bool { _, ok := a.members[name]; return ok }

func (a *archive) open(name string) (*io.SectionReader, error) {
	name = memberName(name)
	if target, ok := a.links[name]; ok {
		name = target
	}
	m, ok := a.members[name]
	if !ok {
		return nil, refuse("the archive has no member %.200q", name)
	}
	return io.NewSectionReader(a.r, m.offset, m.size), nil
}

func (a *archive) read(name string) ([]byte, error) {
	s, err := a.open(name)
	if err != nil {
		return nil, err
	}
	if s.Size() > a.limits.Document {
		return nil, refuse("%.200q has more than %d bytes", name, a.limits.Document)
	}
	return io.ReadAll(s)
}

func (a *archive) document(name string, into any) error {
	data, err := a.read(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return refuse("%.200q is not valid: %v", name, err)
	}
	return nil
}

// layer is one compressed layer.
type layer struct {
	name   string // of the member
	digest string // of the member; "" when the archive does not say
	diffID string // of what it decompresses to
}

// image is what an archive holds.
type image struct {
	config config
	layers []layer
}

// image finds the one image for this machine's architecture.
func (a *archive) image() (image, error) {
	var img image
	var configName string
	var err error
	switch {
	case a.has("index.json"):
		configName, img.layers, err = a.ociManifest()
	case a.has("manifest.json"):
		configName, img.layers, err = a.dockerManifest()
	default:
		err = refuse("it is neither an OCI layout nor a Docker archive: there is no index.json and no manifest.json")
	}
	if err != nil {
		return image{}, err
	}
	if err := a.document(configName, &img.config); err != nil {
		return image{}, err
	}
	if c := img.config; c.Architecture != "" && c.Architecture != runtime.GOARCH || c.OS != "" && c.OS != "linux" {
		return image{}, refuse("it is for %.40s/%.40s, this machine is linux/%s", c.OS, c.Architecture, runtime.GOARCH)
	}
	if len(img.layers) > a.limits.Layers {
		return image{}, refuse("it has more than %d layers", a.limits.Layers)
	}
	ids := img.config.RootFS.DiffIDs
	if len(ids) != len(img.layers) {
		return image{}, refuse("its configuration lists %d layers, its manifest %d", len(ids), len(img.layers))
	}
	for i := range img.layers {
		img.layers[i].diffID = ids[i]
	}
	return img, nil
}

func (a *archive) dockerManifest() (string, []layer, error) {
	var list []struct {
		Config string
		Layers []string
	}
	if err := a.document("manifest.json", &list); err != nil {
		return "", nil, err
	}
	if len(list) != 1 {
		return "", nil, refuse("the archive has %d images; it must have one", len(list))
	}
	var layers []layer
	for _, name := range list[0].Layers {
		layers = append(layers, layer{name: name})
	}
	return list[0].Config, layers, nil
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Platform  *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

func (d descriptor) fits() bool {
	return d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH
}

type manifest struct {
	Config    *descriptor  `json:"config"`
	Layers    []descriptor `json:"layers"`
	Manifests []descriptor `json:"manifests"`
}

// maxIndexes is how deep indexes may lie in each other.
const maxIndexes = 4

func (a *archive) ociManifest() (string, []layer, error) {
	var m manifest
	if err := a.document("index.json", &m); err != nil {
		return "", nil, err
	}
	for range maxIndexes {
		if m.Config != nil {
			return a.ociLayers(m)
		}
		next, err := m.choose()
		if err != nil {
			return "", nil, err
		}
		if m, err = a.blobManifest(next); err != nil {
			return "", nil, err
		}
	}
	return "", nil, refuse("its indexes lie in each other too deeply")
}

// choose picks the manifest for this machine out of an index.
func (m manifest) choose() (string, error) {
	var fit []string
	for _, d := range m.Manifests {
		if d.fits() && !slices.Contains(fit, d.Digest) {
			fit = append(fit, d.Digest)
		}
	}
	if len(fit) != 1 {
		return "", refuse("%d of its images fit linux/%s; one must", len(fit), runtime.GOARCH)
	}
	return fit[0], nil
}

func (a *archive) ociLayers(m manifest) (string, []layer, error) {
	configName, err := blob(m.Config.Digest)
	if err != nil {
		return "", nil, err
	}
	if err := a.verify(configName, m.Config.Digest); err != nil {
		return "", nil, err
	}
	var layers []layer
	for _, d := range m.Layers {
		name, err := blob(d.Digest)
		if err != nil {
			return "", nil, err
		}
		layers = append(layers, layer{name: name, digest: d.Digest})
	}
	return configName, layers, nil
}

func (a *archive) blobManifest(digest string) (m manifest, err error) {
	name, err := blob(digest)
	if err != nil {
		return m, err
	}
	if err := a.verify(name, digest); err != nil {
		return m, err
	}
	return m, a.document(name, &m)
}

// verify checks the digest of a document.
func (a *archive) verify(name, digest string) error {
	data, err := a.read(name)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	return checkDigest(name, digest, sum[:])
}

func checkDigest(what, want string, sum []byte) error {
	if got := digestPrefix + hex.EncodeToString(sum); got != want {
		return refuse("%.200s has the digest %s, not %.80s", what, got, want)
	}
	return nil
}

const digestPrefix = "sha256:"

func blob(digest string) (string, error) {
	text, ok := strings.CutPrefix(digest, digestPrefix)
	if raw, err := hex.DecodeString(text); !ok || err != nil || len(raw) != sha256.Size {
		return "", refuse("%.80q is not a sha256 digest", digest)
	}
	return "blobs/sha256/" + text, nil
}

// hasPrefix reports the magic bytes of a compressed layer.
func hasPrefix(head []byte, magic ...byte) bool { return bytes.HasPrefix(head, magic) }
