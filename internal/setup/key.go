package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

// key makes the first key unless there is one, and hands its hash to control.
func (r *run) key(context.Context) (string, error) {
	k, err := loadKey(r.root)
	if errors.Is(err, fs.ErrNotExist) {
		k, r.result.NewKey = auth.NewKey(), true
		err = writeFile(r.root, "admin.key", []byte(string(k)+"\n"), 0o600, owner{})
	}
	if err != nil {
		return "", err
	}
	r.host.at("key: written")
	control, err := r.root.OpenRoot("control")
	if err != nil {
		return "", fmt.Errorf("hash of the key: %w", err)
	}
	defer control.Close()
	to := owner{r.record.ControlUID, r.record.ControlGID}
	if err := writeFile(control, "admin.hash", []byte(auth.Hash(k).String()+"\n"), 0o600, to); err != nil {
		return "", err
	}
	return r.dir.AdminKeyFile(), nil
}

func loadKey(root *os.Root) (auth.Key, error) {
	data, err := root.ReadFile("admin.key")
	if err != nil {
		return "", err
	}
	k, err := auth.ParseKey(strings.TrimSpace(string(data)))
	if err != nil {
		return "", &sandbox.Error{Code: sandbox.CodeHostSetup, Message: "admin.key is not a key",
			Remedy: "remove it and run setup again: it makes a new one", Err: err}
	}
	return k, nil
}
