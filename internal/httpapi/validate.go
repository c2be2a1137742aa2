package httpapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

// Limits of labels.
const (
	maxMetadataKey   = 128  // bytes
	maxMetadataValue = 4096 // bytes
)

// checkEnv refuses an environment that no process can have.
func checkEnv(field string, env map[string]string) (wrong []sandbox.FieldError) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			wrong = append(wrong, sandbox.FieldError{Field: join(field, name), Message: "a name may not be empty or have = or NUL"})
		}
		if strings.ContainsRune(env[name], 0) {
			wrong = append(wrong, sandbox.FieldError{Field: join(field, name), Message: "a value may not have NUL"})
		}
	}
	return wrong
}

func checkMetadata(metadata map[string]string) (wrong []sandbox.FieldError) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		switch {
		case key == "" || len(key) > maxMetadataKey:
			wrong = append(wrong, sandbox.FieldError{Field: "metadata", Message: fmt.Sprintf("a key must have 1 to %d bytes", maxMetadataKey)})
		case len(metadata[key]) > maxMetadataValue:
			wrong = append(wrong, sandbox.FieldError{Field: join("metadata", key), Message: fmt.Sprintf("a value may have at most %d bytes", maxMetadataValue)})
		}
	}
	return wrong
}

func noNUL(field, value string) []sandbox.FieldError {
	if strings.ContainsRune(value, 0) {
		return []sandbox.FieldError{{Field: field, Message: "may not have NUL"}}
	}
	return nil
}

// sandboxSpec reads the body of a create.
func sandboxSpec(b apiv1.CreateSandbox) (sandbox.Spec, error) {
	wrong := append(checkEnv("env", b.Env), checkMetadata(b.Metadata)...)
	wrong = append(wrong, noNUL("template", b.Template)...)
	if len(wrong) > 0 {
		return sandbox.Spec{}, invalid(wrong...)
	}
	if b.Name != "" {
		if _, err := sandbox.ParseName(b.Name); err != nil {
			return sandbox.Spec{}, err
		}
	}
	spec := sandbox.Spec{Template: b.Template, Name: b.Name, Env: b.Env, Metadata: b.Metadata, Driver: b.Driver,
		VCPUs: sandbox.DefaultVCPUs, MemoryMiB: sandbox.DefaultMemoryMiB, DiskMiB: sandbox.DefaultDiskMiB}
	for _, n := range []struct{ to, from *int }{{&spec.VCPUs, b.VCPUs}, {&spec.MemoryMiB, b.MemoryMiB}, {&spec.DiskMiB, b.DiskMiB}} {
		if n.from != nil {
			*n.to = *n.from
		}
	}
	if b.Lease != nil {
		spec.Lease = &sandbox.Lease{TTL: seconds(b.Lease.TTLSeconds), OnExpiry: sandbox.Expiry(cmp.Or(b.Lease.OnExpiry, string(sandbox.ExpireDelete)))}
	}
	return spec, nil
}

// seconds is a duration that a schema has bounded.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// leasePatch reads what a PATCH says about the lease; nil: it is to be removed.
func leasePatch(b *apiv1.PatchLease) *control.LeasePatch {
	if b == nil {
		return &control.LeasePatch{Remove: true}
	}
	return &control.LeasePatch{TTL: seconds(b.TTLSeconds), Extend: b.Mode == "extend", OnExpiry: sandbox.Expiry(b.OnExpiry)}
}

// commandSpec checks what a schema cannot say about a command.
func commandSpec(spec sandbox.CommandSpec) (sandbox.CommandSpec, error) {
	var wrong []sandbox.FieldError
	switch {
	case len(spec.Argv) == 0:
		wrong = append(wrong, sandbox.FieldError{Field: "argv", Message: "must name a program"})
	case spec.Argv[0] == "":
		wrong = append(wrong, sandbox.FieldError{Field: "argv[0]", Message: "must name a program"})
	}
	for i, arg := range spec.Argv {
		wrong = append(wrong, noNUL(fmt.Sprintf("argv[%d]", i), arg)...)
	}
	wrong = append(wrong, checkEnv("env", spec.Env)...)
	wrong = append(wrong, noNUL("cwd", spec.Cwd)...)
	wrong = append(wrong, noNUL("user", spec.User)...)
	wrong = append(wrong, noNUL("tag", spec.Tag)...)
	if len(wrong) > 0 {
		return sandbox.CommandSpec{}, invalid(wrong...)
	}
	return spec, nil
}

// signalName accepts the names that Linux has, such as SIGTERM.
func signalName(name string) (string, error) {
	if unix.SignalNum(name) == 0 {
		return "", invalid(sandbox.FieldError{Field: "signal", Message: "must be the name of a signal, such as SIGTERM"})
	}
	return name, nil
}

// sandboxRef accepts what can be a sandbox's id or name; nothing else exists.
func sandboxRef(ref string) (string, error) {
	if _, err := sandbox.ParseID(ref); err == nil {
		return ref, nil
	}
	if _, err := sandbox.ParseName(ref); err == nil {
		return ref, nil
	}
	return "", &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such sandbox",
		Cause: fmt.Sprintf("%q is neither an id nor a name", ref), Remedy: "GET /v1/sandboxes lists them"}
}
