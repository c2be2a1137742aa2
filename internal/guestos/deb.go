package guestos

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// ExtractDeb copies regular files of a Debian package, those for whose name pick says true, into dst. Names are
// relative and clean ("boot/vmlinuz-6.1"); anything else in the package (links, devices, odd names) is passed over.
// Sizes and counts are bounded, and dst cannot be left by any name.
func ExtractDeb(ctx context.Context, deb io.Reader, dst *os.Root, pick func(name string) bool) error {
	archive, err := newArReader(deb)
	if err != nil {
		return fmt.Errorf("read package: %w", err)
	}
	for {
		name, member, err := archive.next()
		if errors.Is(err, io.EOF) {
			return errors.New("read package: it has no data.tar")
		}
		if err != nil {
			return fmt.Errorf("read package: %w", err)
		}
		if !strings.HasPrefix(name, "data.tar") {
			continue
		}
		if err := extractData(ctx, member, dst, pick); err != nil {
			return fmt.Errorf("read package: %s: %w", name, err)
		}
		return nil
	}
}

func extractData(ctx context.Context, member io.Reader, dst *os.Root, pick func(string) bool) error {
	plain, err := decompressor(member, isTar)
	if err != nil {
		return err
	}
	defer plain.Close()
	entries := tar.NewReader(&boundedReader{r: plain, left: maxPackageContent})
	for range maxPackageEntries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(header.Name, "./")
		if header.Typeflag != tar.TypeReg || !fs.ValidPath(name) || name == "." || !pick(name) {
			continue
		}
		if header.Size > maxPackageFile {
			return fmt.Errorf("%s has %d bytes: %w", name, header.Size, ErrTooLarge)
		}
		if err := writeFile(dst, name, entries); err != nil {
			return err
		}
	}
	return fmt.Errorf("more than %d entries: %w", maxPackageEntries, ErrTooLarge)
}

// isTar tells an uncompressed tar by the magic in its first header.
func isTar(head []byte) bool { return len(head) >= 262 && string(head[257:262]) == "ustar" }

func writeFile(dst *os.Root, name string, content io.Reader) (err error) {
	if err := dst.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := dst.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
