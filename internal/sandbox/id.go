package sandbox

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"strings"
)

// ID names a sandbox for ever: 20 characters of [a-z0-9], chosen at random by control. Parse text into an ID at the
// boundary with ParseID and pass the type on: an ID is safe as a file name, a label and a host name.
type ID string

// OperationID names an operation: "op_" and 20 of [a-z0-9].
type OperationID string

// CommandID names a command session in the API: "cmd_" and 20 of [a-z0-9]. A fork's sessions get new ones.
type CommandID string

// ProcessID names a process inside one sandbox, also in its saved memory: "proc_" and 20 of [a-z0-9].
type ProcessID string

const idLength = 20

// NewID returns a fresh random ID.
func NewID() ID { return ID(randomText(idLength)) }

// NewOperationID returns a fresh random operation id.
func NewOperationID() OperationID { return OperationID("op_" + randomText(idLength)) }

// NewCommandID returns a fresh random command id.
func NewCommandID() CommandID { return CommandID("cmd_" + randomText(idLength)) }

// NewProcessID returns a fresh random process id.
func NewProcessID() ProcessID { return ProcessID("proc_" + randomText(idLength)) }

// ParseID accepts exactly what NewID makes.
func ParseID(s string) (ID, error) {
	if !isIDText(s) {
		return "", Errorf(CodeInvalidArgument, "%q is not a sandbox id", s)
	}
	return ID(s), nil
}

// ParseOperationID accepts exactly what NewOperationID makes.
func ParseOperationID(s string) (OperationID, error) {
	if rest, ok := strings.CutPrefix(s, "op_"); ok && isIDText(rest) {
		return OperationID(s), nil
	}
	return "", Errorf(CodeNotFound, "%q is not an operation id", s)
}

// ParseCommandID accepts exactly what NewCommandID makes.
func ParseCommandID(s string) (CommandID, error) {
	if rest, ok := strings.CutPrefix(s, "cmd_"); ok && isIDText(rest) {
		return CommandID(s), nil
	}
	return "", Errorf(CodeNotFound, "%q is not a command id", s)
}

// ParseProcessID accepts exactly what NewProcessID makes.
func ParseProcessID(s string) (ProcessID, error) {
	if rest, ok := strings.CutPrefix(s, "proc_"); ok && isIDText(rest) {
		return ProcessID(s), nil
	}
	return "", Errorf(CodeInvalidArgument, "%q is not a process id", s)
}

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// ParseName checks a sandbox name: a letter, then letters, digits and hyphens, at most 63, and nothing that could be
// taken for an ID.
func ParseName(s string) (string, error) {
	if !namePattern.MatchString(s) {
		return "", &Error{Code: CodeInvalidArgument, Message: "the name is not valid",
			Cause:  fmt.Sprintf("%q", s),
			Remedy: "use a lower-case letter followed by at most 62 lower-case letters, digits or hyphens",
			Fields: []FieldError{{Field: "name", Message: "must match [a-z][a-z0-9-]{0,62}"}}}
	}
	if isIDText(s) {
		return "", &Error{Code: CodeInvalidArgument, Message: "the name looks like a sandbox id",
			Cause: fmt.Sprintf("%q has the form of an id", s), Remedy: "choose a name that is not exactly 20 letters and digits",
			Fields: []FieldError{{Field: "name", Message: "must not look like an id"}}}
	}
	return s, nil
}

var templateName = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?)?:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// ParseTemplateName checks the name of a template, [namespace/]name[:tag], and returns it with its tag (latest when
// there is none). What could be taken for a digest is no name.
func ParseTemplateName(s string) (string, error) {
	full := s
	if !strings.Contains(s[strings.LastIndexByte(s, '/')+1:], ":") {
		full += ":latest"
	}
	if !templateName.MatchString(full) || strings.HasPrefix(full, "sha256:") {
		return "", &Error{Code: CodeInvalidArgument, Message: "this is not a name for a template", Cause: fmt.Sprintf("%.300q", s),
			Remedy: "use name, name:tag or namespace/name:tag, in lower case",
			Fields: []FieldError{{Field: "name", Message: "must be [namespace/]name[:tag]"}}}
	}
	return full, nil
}

func isIDText(s string) bool {
	if len(s) != idLength {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// randomText returns n characters of [a-z0-9]. Bytes over 251 are drawn again, so each character is equally likely.
func randomText(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	var buf [32]byte
	for len(out) < n {
		rand.Read(buf[:]) // never fails (crypto/rand)
		for _, b := range buf {
			if b < 252 && len(out) < n {
				out = append(out, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(out)
}
