package main

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

const (
	maxTreeEntries = 500_000
	maxTreeNames   = 64 << 20 // bytes of the names of directories whose modes are set at the end
	treeBuffer     = 256 << 10
)

// uploadTree sends a directory as one archive, made while it is sent.
func uploadTree(ctx context.Context, cli *cli, from, name string, to remote, opts client.FileOptions) error {
	to, err := to.target(ctx, cli, name, opts)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	defer func() { _ = r.Close() }() // never fails; ends the packing when the upload ends early
	packed := make(chan error, 1)
	p := newProgress(cli.err, to.path, 0)
	go func() {
		out := bufio.NewWriterSize(io.MultiWriter(w, p), treeBuffer)
		err := packTree(ctx, from, out, func(skipped string) {
			fmt.Fprintf(cli.err, "space: %s is left out: it is neither a file nor a directory nor a link\n", plain(skipped))
		})
		if err == nil {
			err = out.Flush()
		}
		packed <- err
		w.CloseWithError(err)
	}()
	opts.CreateParents = true
	done, err := cli.client().WriteArchive(ctx, to.ref, to.path, r, opts)
	_ = r.Close()
	p.end()
	if perr := <-packed; perr != nil && !errors.Is(perr, io.ErrClosedPipe) {
		return perr // what the server says then is that the body was cut off
	}
	if err != nil {
		return err
	}
	if cli.json() {
		return cli.printJSON(done)
	}
	return nil
}

// packTree writes what is in a directory as a tar, with names relative to it.
func packTree(ctx context.Context, dir string, w io.Writer, skipped func(string)) error {
	tw := tar.NewWriter(w)
	// With the dot, a directory that is named by a link is walked too.
	err := filepath.WalkDir(filepath.Clean(dir)+"/.", func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := os.Lstat(p)
		if err != nil {
			return err
		}
		if m := info.Mode(); !m.IsRegular() && !m.IsDir() && m&fs.ModeSymlink == 0 {
			skipped(p)
			return nil
		}
		return packOne(tw, p, filepath.ToSlash(rel), info)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func packOne(tw *tar.Writer, p, name string, info fs.FileInfo) error {
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if link, err = os.Readlink(p); err != nil {
			return err
		}
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: link, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime().Truncate(time.Second)}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case link != "":
		h.Typeflag = tar.TypeSymlink
	default:
		return packFile(tw, p, h)
	}
	return tw.WriteHeader(h)
}

// packFile writes a file with the size it has when it is opened; one that shrinks meanwhile is an error.
func packFile(tw *tar.Writer, p string, h *tar.Header) error {
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(tw, f, h.Size); err != nil {
		return fmt.Errorf("%s changed while it was read: %w", p, err)
	}
	return nil
}

// downloadTree unpacks a directory of a sandbox on this machine.
func downloadTree(ctx context.Context, cli *cli, from remote, to string, opts client.FileOptions) error {
	if to != "-" {
		var err error
		if to, err = treeTarget(from, to); err != nil {
			return err
		}
	}
	f, err := cli.client().ReadArchive(ctx, from.ref, from.path, opts)
	if err != nil {
		return err
	}
	defer f.Close()
	if to == "-" {
		_, err := io.Copy(cli.out, f)
		return err
	}
	p := newProgress(cli.err, to, 0)
	done, err := unpackTree(to, io.TeeReader(f, p))
	p.end()
	if err != nil {
		return err
	}
	if cli.json() {
		return cli.printJSON(done)
	}
	return nil
}

// treeTarget is where a directory goes. SANDBOX:DIR/. is what is in it, and goes into the target itself.
func treeTarget(from remote, to string) (string, error) {
	info, err := os.Stat(to)
	if err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory, and what is to be copied is one", to)
	}
	if from.path == "." || strings.HasSuffix(from.path, "/.") {
		return to, nil
	}
	return localTarget(from, to)
}

// treeUnpacker unpacks an archive of a sandbox. A sandbox is not to be trusted: names cannot lead out of root, links are
// made but never followed out of it, and nothing but files, directories and links is made.
type treeUnpacker struct {
	root  *os.Root
	done  apiv1.UnpackedArchive
	dirs  []treeDir // made here, outermost first
	names int
}

type treeDir struct {
	name  string
	mode  fs.FileMode
	mtime time.Time
}

func unpackTree(to string, r io.Reader) (*apiv1.UnpackedArchive, error) {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := &treeUnpacker{root: root, done: apiv1.UnpackedArchive{Path: to}}
	err = u.run(tar.NewReader(bufio.NewReaderSize(r, treeBuffer)))
	if err := errors.Join(err, u.finish()); err != nil {
		return nil, fmt.Errorf("after %d entries in %s: %w", u.done.Entries, to, err)
	}
	return &u.done, nil
}

func (u *treeUnpacker) run(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(filepath.FromSlash(h.Name))
		if !filepath.IsLocal(name) {
			return fmt.Errorf("the archive has an entry outside of itself: %s", h.Name)
		}
		if u.done.Entries == maxTreeEntries {
			return fmt.Errorf("the archive has more than %d entries", maxTreeEntries)
		}
		if err := u.entry(tr, h, name); err != nil {
			return err
		}
		u.done.Entries++
	}
}

func (u *treeUnpacker) entry(tr *tar.Reader, h *tar.Header, name string) error {
	if h.Typeflag == tar.TypeDir {
		return u.directory(name, h)
	}
	if err := u.root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	// What is there is replaced, not written through: it may be a link.
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(tr, h, name)
	case tar.TypeSymlink:
		return u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return u.link(h, name)
	}
	return fmt.Errorf("the archive has something that is neither a file nor a directory nor a link: %s", h.Name)
}

// link makes a second name of a file of the archive. What is a link itself is not linked to.
func (u *treeUnpacker) link(h *tar.Header, name string) error {
	old := filepath.Clean(filepath.FromSlash(h.Linkname))
	info, err := u.root.Lstat(old)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err != nil {
		return fmt.Errorf("link to %s: %w", h.Linkname, err)
	}
	return u.root.Link(old, name)
}

func (u *treeUnpacker) directory(name string, h *tar.Header) error {
	if name == "." {
		return nil // the target is the user's
	}
	if info, err := u.root.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := u.root.MkdirAll(name, 0o777); err != nil {
		return err
	}
	if u.names += len(name); u.names > maxTreeNames {
		return errors.New("the archive has too many directories")
	}
	u.dirs = append(u.dirs, treeDir{name, fs.FileMode(h.Mode).Perm(), h.ModTime})
	return nil
}

func (u *treeUnpacker) file(tr *tar.Reader, h *tar.Header, name string) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, tr)
	if err == nil {
		err = f.Chmod(fs.FileMode(h.Mode).Perm())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, u.root.Remove(name))
	}
	u.done.SizeBytes += n
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

// finish gives directories their modes and times when everything is in them, those further down first.
func (u *treeUnpacker) finish() error {
	var errs []error
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if info, err := u.root.Lstat(d.name); err != nil || !info.IsDir() {
			continue // a later entry has taken its place
		}
		errs = append(errs, u.root.Chmod(d.name, d.mode), u.root.Chtimes(d.name, d.mtime, d.mtime))
	}
	return errors.Join(errs...)
}
