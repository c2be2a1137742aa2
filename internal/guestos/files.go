package guestos

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// replaceFile writes name by way of a temporary file: readers see the old content or the new, also after a crash.
func replaceFile(root *os.Root, name string, write func(io.Writer) error) (err error) {
	temporary := temporaryPrefix + rand.Text()
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, root.Remove(temporary))
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	// The VMM reopens the file as a user of its own, whatever the umask was here.
	if err := f.Chmod(0o444); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return root.Rename(temporary, name)
}

// temporaryPrefix is of names that the next Build may remove.
const temporaryPrefix = ".new-"

// storeFile writes content under a name made of prefix, its digest and suffix.
func storeFile(root *os.Root, prefix, suffix string, content []byte) (File, error) {
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	file := File{Name: prefix + "-" + digest[:16] + suffix, Size: int64(len(content)), SHA256: digest}
	err := replaceFile(root, file.Name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
	if err != nil {
		return File{}, fmt.Errorf("store %s: %w", file.Name, err)
	}
	return file, nil
}

// syncDir makes renames in the directory durable.
func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
