package guestos

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// arMagic starts every ar archive, the outer format of a .deb.
const arMagic = "!<arch>\n"

const arHeaderSize = 60

// arReader reads the members of an ar archive one after the other. Names are the plain 16-byte ones: a .deb has no
// others.
type arReader struct {
	r    io.Reader
	rest int64 // bytes of the current member that were not read, with its padding
}

func newArReader(r io.Reader) (*arReader, error) {
	magic := make([]byte, len(arMagic))
	if _, err := io.ReadFull(r, magic); err != nil {
		return nil, fmt.Errorf("ar: %w", noEOF(err))
	}
	if string(magic) != arMagic {
		return nil, errors.New("ar: not an archive")
	}
	return &arReader{r: r}, nil
}

// next goes to the next member and returns its name and content; io.EOF after the last one.
func (a *arReader) next() (string, io.Reader, error) {
	if _, err := io.CopyN(io.Discard, a.r, a.rest); err != nil {
		return "", nil, fmt.Errorf("ar: %w", noEOF(err))
	}
	a.rest = 0
	header := make([]byte, arHeaderSize)
	if _, err := io.ReadFull(a.r, header); err != nil {
		if errors.Is(err, io.EOF) {
			return "", nil, io.EOF
		}
		return "", nil, fmt.Errorf("ar: %w", err)
	}
	size, err := strconv.ParseUint(strings.TrimSpace(string(header[48:58])), 10, 40)
	if err != nil || string(header[58:]) != "`\n" {
		return "", nil, errors.New("ar: damaged header")
	}
	a.rest = int64(size + size%2)
	name := strings.TrimSuffix(strings.TrimRight(string(header[:16]), " "), "/")
	return name, &arMember{archive: a, left: int64(size)}, nil
}

type arMember struct {
	archive *arReader
	left    int64
}

func (m *arMember) Read(p []byte) (int, error) {
	if m.left == 0 {
		return 0, io.EOF
	}
	n, err := m.archive.r.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	m.archive.rest -= int64(n)
	if m.left > 0 {
		err = noEOF(err)
	}
	return n, err
}

// noEOF makes an end that comes too early an error of its own.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
