package guestos

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
)

// A kernel module is read from a package of a mirror.
func FuzzModuleInfo(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, ko []byte) {
		info, err := readModuleInfo(ko)
		if err != nil {
			return
		}
		for _, name := range append(info.Depends, info.Name) {
			if strings.ContainsAny(name, "\x00-,") && name != info.Name {
				t.Errorf("%q depends on %q", info.Name, name)
			}
		}
	})
}

// What a module is unpacked from may be anything, and is bounded.
func FuzzUnpackModule(f *testing.F) {
	for _, s := range []string{"\x7fELF", "\xfd7zXZ\x00", "\x1f\x8b\x08", "\x28\xb5\x2f\xfd", ""} {
		f.Add([]byte(s))
	}
	var zipped bytes.Buffer
	zw := gzip.NewWriter(&zipped)
	_, err := zw.Write([]byte("\x7fELF and so on"))
	if err = errors.Join(err, zw.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(zipped.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if out, err := unpackModule(io.LimitReader(bytes.NewReader(data), 1<<20)); err == nil && len(out) > maxModule {
			t.Errorf("%d bytes", len(out))
		}
	})
}
