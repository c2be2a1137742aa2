package httpapi

import (
	"context"
	"encoding/base64"
	"unicode/utf8"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/wire"
)

type execInput struct {
	SandboxPath
	IdempotencyParam
	Body apiv1.Exec
}

type execOutput struct {
	ReplayHeader
	Body apiv1.ExecResult
}

func (s *server) exec(ctx context.Context, in *execInput) (*execOutput, error) {
	result, err := s.runExec(ctx, in)
	if err != nil {
		return nil, s.refused(ctx, "exec", err)
	}
	return &execOutput{ReplayHeader: replayed(result.Replayed), Body: execWire(result)}, nil
}

func (s *server) runExec(ctx context.Context, in *execInput) (control.ExecResult, error) {
	ref, err := sandboxRef(in.ID)
	if err != nil {
		return control.ExecResult{}, err
	}
	b := in.Body
	if b.Start != nil && !*b.Start {
		return control.ExecResult{}, invalid(sandbox.FieldError{Field: "start", Message: "an exec always starts at once"})
	}
	stdin, err := base64.StdEncoding.DecodeString(b.StdinB64)
	if err != nil {
		return control.ExecResult{}, invalid(sandbox.FieldError{Field: "stdin_b64", Message: "is not base64 (the standard alphabet, padded)"})
	}
	spec, err := commandSpec(sandbox.CommandSpec{Argv: b.Argv, Env: b.Env, Cwd: b.Cwd, User: b.User,
		Stdin: b.Stdin || b.StdinB64 != "", PTY: terminalSize(b.PTY), TimeoutSeconds: b.TimeoutSeconds, Tag: b.Tag, Record: b.Record})
	if err != nil {
		return control.ExecResult{}, err
	}
	call, err := in.call(ctx, "POST /v1/sandboxes/"+ref+"/exec", b)
	if err != nil {
		return control.ExecResult{}, err
	}
	return s.Control.Exec(ctx, call, ref, spec, stdin)
}

// execWire shows the output as text when both streams are UTF-8, else both as base64.
func execWire(r control.ExecResult) apiv1.ExecResult {
	out := apiv1.ExecResult{Command: wire.Command(r.Command)}
	total := r.Command.StdoutBytes
	if r.Command.Spec.PTY != nil {
		total = r.Command.PTYBytes
	}
	stdout, ok1 := asText(r.Stdout, total)
	stderr, ok2 := asText(r.Stderr, r.Command.StderrBytes)
	if ok1 && ok2 {
		out.Stdout, out.Stderr, out.Encoding = stdout, stderr, "utf-8"
		return out
	}
	out.Stdout = base64.StdEncoding.EncodeToString(r.Stdout)
	out.Stderr = base64.StdEncoding.EncodeToString(r.Stderr)
	out.Encoding = "base64"
	return out
}

// asText returns data as text. When data is only the first part of a stream of total bytes, a character that the cut
// went through is left out.
func asText(data []byte, total uint64) (string, bool) {
	if utf8.Valid(data) {
		return string(data), true
	}
	if uint64(len(data)) >= total {
		return "", false
	}
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		tail := data[len(data)-n:]
		if utf8.RuneStart(tail[0]) {
			head := data[:len(data)-n]
			return string(head), !utf8.FullRune(tail) && utf8.Valid(head)
		}
	}
	return "", false
}
