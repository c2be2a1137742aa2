package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

func newCpCmd(cli *cli) *cobra.Command {
	var opts client.FileOptions
	cmd := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files and directories into a sandbox or out of it",
		Long: `Copies a file, or a directory with all that is in it; what is executable stays so. One side is SANDBOX:PATH, the other a path on this machine, or -
for standard input or output (of a directory: a tar). Relative paths in a sandbox start in the user's home. Into a
directory that exists, and with a target that ends with /, the name is kept; else the target is the new name. DIR/. is
what is in DIR. Links are copied as links. Write ./a:b for a file of this machine whose name has a colon.`,
		Example: "  space cp app.py web:\n  space cp web:/etc/os-release .\n  space cp web:data.csv - | head\n  space cp project web:\n  space cp web:/srv/results ./results",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, fromRemote := parseRemote(args[0])
			to, toRemote := parseRemote(args[1])
			switch {
			case fromRemote && !toRemote:
				return interruptible(cmd.Context(), func(ctx context.Context) error { return download(ctx, cli, from, args[1], opts) })
			case toRemote && !fromRemote:
				return interruptible(cmd.Context(), func(ctx context.Context) error { return upload(ctx, cli, args[0], to, opts) })
			}
			return &usageError{err: errors.New("one side of cp must be SANDBOX:PATH, the other a file of this machine")}
		},
	}
	cmd.Flags().BoolVarP(&opts.CreateParents, "parents", "p", false, "make the directories in the sandbox that are missing")
	cmd.Flags().StringVarP(&opts.User, "user", "u", "", "user in the guest (default: the template's)")
	return cmd
}

// remote is a file in a sandbox.
type remote struct{ ref, path string }

var remotePattern = regexp.MustCompile(`^([a-z0-9][a-z0-9-]*):(.*)$`)

func parseRemote(arg string) (remote, bool) {
	m := remotePattern.FindStringSubmatch(arg)
	if m == nil {
		return remote{}, false
	}
	return remote{m[1], m[2]}, true
}

// target is where a copy of name goes: into a path that is a directory, or is said to be one, else to the path itself.
func (r remote) target(ctx context.Context, cli *cli, name string, opts client.FileOptions) (remote, error) {
	if r.path == "" || strings.HasSuffix(r.path, "/") {
		if name == "" {
			return r, &usageError{err: errors.New("standard input has no name: say what the file is to be called")}
		}
		r.path += name
		return r, nil
	}
	if name == "" {
		return r, nil
	}
	info, err := cli.client().StatFile(ctx, r.ref, r.path, client.StatOptions{User: opts.User, Follow: true})
	switch {
	case err == nil && info.Type == apiv1.FileTypeDirectory:
		r.path = path.Join(r.path, name)
	case err != nil && client.Code(err) == "unauthenticated", err != nil && client.Code(err) == "":
		return r, err
	}
	return r, nil // what else is wrong with the path, the copy itself finds out
}

func upload(ctx context.Context, cli *cli, from string, to remote, opts client.FileOptions) error {
	src, size, name := cli.in, int64(0), ""
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if name, err = baseName(from); err != nil {
			return err
		}
		if info.IsDir() {
			if from == "." || strings.HasSuffix(from, "/.") { // what is in it, not the directory
				name = "."
			}
			return uploadTree(ctx, cli, from, name, to, opts)
		}
		if info.Mode().IsRegular() {
			size = info.Size()
			if perm := info.Mode().Perm(); perm&0o111 != 0 {
				opts.Mode = perm
			}
		}
		src = f
	}
	to, err := to.target(ctx, cli, name, opts)
	if err != nil {
		return err
	}
	opts.Size = size
	sum := sha256.New()
	p := newProgress(cli.err, to.path, size)
	written, err := cli.client().WriteFile(ctx, to.ref, to.path, io.TeeReader(src, io.MultiWriter(sum, p)), opts)
	p.end()
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != written.SHA256 {
		return fmt.Errorf("the file in the sandbox is not what was sent (its SHA-256 is %s, not %s)", plain(written.SHA256), got)
	}
	if cli.json() {
		return cli.printJSON(written)
	}
	return nil
}

// baseName is the name of a path of this machine, also of "." and the like.
func baseName(p string) (string, error) {
	whole, err := filepath.Abs(p)
	if err != nil {
		return "", err
	}
	return filepath.Base(whole), nil
}

func download(ctx context.Context, cli *cli, from remote, to string, opts client.FileOptions) error {
	if from.path == "" {
		return &usageError{err: errors.New("say which file of the sandbox: SANDBOX:PATH")}
	}
	f, err := cli.client().ReadFile(ctx, from.ref, from.path, opts)
	if client.Code(err) == "is_directory" {
		return downloadTree(ctx, cli, from, to, opts)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if to == "-" {
		_, err := io.Copy(cli.out, f)
		return err
	}
	if to, err = localTarget(from, to); err != nil {
		return err
	}
	sum := sha256.New()
	p := newProgress(cli.err, to, f.Size)
	size, err := writeLocal(to, io.TeeReader(f, p), sum)
	p.end()
	if err != nil {
		return err
	}
	if cli.json() {
		return cli.printJSON(apiv1.WrittenFile{Path: to, SizeBytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))})
	}
	return nil
}

// localTarget is where a copy goes on this machine. The name in it is the last part of the path that was asked for,
// which may not be one that leads somewhere else.
func localTarget(from remote, to string) (string, error) {
	info, err := os.Stat(to)
	if !strings.HasSuffix(to, "/") && (err != nil || !info.IsDir()) {
		return to, nil
	}
	name := path.Base(path.Clean("/" + from.path))
	if name == "/" {
		return "", &usageError{err: errors.New("what is copied has no name of its own: say how it is to be called")}
	}
	return filepath.Join(to, name), nil
}

// writeLocal writes a whole file or leaves what was there. What is no regular file, such as /dev/null, is written to.
func writeLocal(to string, from io.Reader, sum hash.Hash) (int64, error) {
	mode := os.FileMode(0o666)
	if info, err := os.Stat(to); err == nil {
		if !info.Mode().IsRegular() {
			return writeDevice(to, from, sum)
		}
		mode = info.Mode().Perm()
	}
	temp := fmt.Sprintf("%s.space-%d", to, os.Getpid())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(temp) }() // gone already when all went well
	n, err := io.Copy(io.MultiWriter(f, sum), from)
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	return n, os.Rename(temp, to)
}

func writeDevice(to string, from io.Reader, sum hash.Hash) (int64, error) {
	f, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.MultiWriter(f, sum), from)
	return n, errors.Join(err, f.Close())
}
