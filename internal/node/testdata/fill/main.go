// Command fill writes a file of so many MiB that no compression or copy makes smaller, waits until the disk has it, and
// reads it back from there. "fill check" only reads.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("fill write|check MIB FILE")
	}
	blocks, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if args[0] == "write" {
		if err := write(args[2], blocks); err != nil {
			return err
		}
	}
	return check(args[2], blocks)
}

// block is the content of one MiB.
func block(n int) []byte {
	data := make([]byte, 1<<20)
	source := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	_, _ = source.Read(data) // never fails
	return data
}

func write(path string, blocks int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for n := range blocks {
		if _, err := f.Write(block(n)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}

func check(path string, blocks int) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	got := make([]byte, 1<<20)
	for n := range blocks {
		if _, err := io.ReadFull(f, got); err != nil {
			return err
		}
		if !bytes.Equal(got, block(n)) {
			return fmt.Errorf("MiB %d is not what was written", n)
		}
	}
	return nil
}
