package ociimage

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/space-sandbox/space/internal/template"
)

// What a worker does.
const (
	ModeScan  = "scan"
	ModeBuild = "build"
)

// Descriptors that a worker is given: the archive, the empty directory to unpack into and the empty file of the image.
// A scan gets the first only.
const (
	ArchiveFD = 3
	TreeFD    = 4
	ImageFD   = 5
)

// Result is what a worker writes to its standard output. Whoever reads it must not believe more than its form.
type Result struct {
	// Refused says what is wrong with the image, Fault what went wrong with us; "" for nothing.
	Refused string `json:"refused,omitempty"`
	Fault   string `json:"fault,omitempty"`
	// UIDs and GIDs are what a scan found.
	UIDs []uint32 `json:"uids,omitempty"`
	GIDs []uint32 `json:"gids,omitempty"`
	// Settings are the image's, after a build.
	Settings *Settings `json:"settings,omitempty"`
}

// MaxResult bounds a Result in JSON.
const MaxResult = 512 << 10

// Worker runs a worker to its end. It changes the working directory of the process.
func Worker(ctx context.Context, mode string, out io.Writer) error {
	res, err := work(ctx, mode)
	if r, ok := errors.AsType[*refusal](err); ok {
		res = Result{Refused: r.text}
	} else if err != nil {
		res = Result{Fault: err.Error()}
	}
	return json.NewEncoder(out).Encode(res)
}

func work(ctx context.Context, mode string) (Result, error) {
	f := os.NewFile(ArchiveFD, "archive")
	info, err := f.Stat()
	if err != nil {
		return Result{}, fmt.Errorf("archive: %w", err)
	}
	a, err := openArchive(f, info.Size(), DefaultLimits())
	if err != nil {
		return Result{}, err
	}
	img, err := a.image()
	if err != nil {
		return Result{}, err
	}
	settings, err := img.config.settings()
	if err != nil {
		return Result{}, err
	}
	switch mode {
	case ModeScan:
		owners, err := a.scan(img)
		return Result{UIDs: owners.UIDs, GIDs: owners.GIDs}, err
	case ModeBuild:
		return Result{Settings: &settings}, a.build(ctx, img, settings)
	}
	return Result{}, fmt.Errorf("there is no mode %q", mode)
}

func (a *archive) build(ctx context.Context, img image, settings Settings) error {
	// The directory may lie where this process cannot go by name.
	if err := os.NewFile(TreeFD, "tree").Chdir(); err != nil {
		return fmt.Errorf("tree: %w", err)
	}
	root, err := os.OpenRoot(".")
	if err != nil {
		return fmt.Errorf("tree: %w", err)
	}
	defer root.Close()
	if err := a.unpack(img, root); err != nil {
		return err
	}
	if err := makeWorkdir(root, settings.Workdir); err != nil {
		return err
	}
	id, err := settings.imageID()
	if err != nil {
		return err
	}
	return template.MakeExt4(ctx, ".", id, 0, os.NewFile(ImageFD, "image"))
}

// makeWorkdir makes the working directory of commands, which images may name without having it.
func makeWorkdir(root *os.Root, dir string) error {
	_, err := resolve(root, strings.Split(dir, "/"))
	if _, ok := errors.AsType[*refusal](err); ok {
		return nil // something else lies there: commands will say so
	}
	return err
}

// imageID is the UUID of the file system. It depends on the settings, so that the digest of an image covers them too.
func (s Settings) imageID() (string, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("settings: %w", err)
	}
	h := sha256.Sum256(data)
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // version 8: made as one likes
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]), nil
}
