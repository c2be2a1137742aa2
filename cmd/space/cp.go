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
		Short: "Copy a file into a sandbox or out of it",
		Long: `Copies one file; one that is executable stays so in the sandbox. One side is SANDBOX:PATH, the other a path on this machine, or - for standard input or output. Relative
paths in a sandbox start in the user's home. A path that ends with / keeps the file's name. Write ./a:b for a file of
this machine whose name has a colon.`,
		Example: "  space cp app.py web:\n  space cp web:/etc/os-release .\n  space cp web:data.csv - | head",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, fromRemote := parseRemote(args[0])
			to, toRemote := parseRemote(args[1])
			switch {
			case fromRemote && !toRemote:
				return download(cmd.Context(), cli, from, args[1], opts)
			case toRemote && !fromRemote:
				return upload(cmd.Context(), cli, args[0], to, opts)
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

func upload(ctx context.Context, cli *cli, from string, to remote, opts client.FileOptions) error {
	src, size := cli.in, int64(0)
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
		if info.IsDir() {
			return fmt.Errorf("%s is a directory (cp copies single files)", from)
		}
		if info.Mode().IsRegular() {
			size = info.Size()
			if perm := info.Mode().Perm(); perm&0o111 != 0 {
				opts.Mode = perm
			}
		}
		src = f
	}
	if to.path == "" || strings.HasSuffix(to.path, "/") {
		if from == "-" {
			return &usageError{err: errors.New("standard input has no name: say what the file is to be called")}
		}
		to.path += filepath.Base(from)
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

func download(ctx context.Context, cli *cli, from remote, to string, opts client.FileOptions) error {
	if from.path == "" {
		return &usageError{err: errors.New("say which file of the sandbox: SANDBOX:PATH")}
	}
	f, err := cli.client().ReadFile(ctx, from.ref, from.path, opts)
	if err != nil {
		return err
	}
	defer f.Close()
	if to == "-" {
		_, err := io.Copy(cli.out, f)
		return err
	}
	if info, err := os.Stat(to); strings.HasSuffix(to, "/") || err == nil && info.IsDir() {
		to = filepath.Join(to, path.Base(from.path))
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
