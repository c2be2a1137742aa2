package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/sandbox"
)

func TestWriteIsTheContractsForm(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("create: %w", &sandbox.Error{Code: sandbox.CodeSandboxBusy, Message: "busy", Cause: "a delete runs",
		Remedy: "wait", Fields: []sandbox.FieldError{{Field: "vcpus", Message: "too many"}}, Err: errors.New("secret detail")})
	rec := httptest.NewRecorder()
	Write(rec, err, Options{OperationID: "op_1", SandboxID: "sb"})

	want := `{"status":409,"code":"sandbox_busy","message":"busy","cause":"a delete runs","remedy":"wait","retryable":true,` +
		`"operation_id":"op_1","sandbox_id":"sb","fields":[{"field":"vcpus","message":"too many"}]}` + "\n"
	if diff := cmp.Diff(want, rec.Body.String()); diff != "" {
		t.Error(diff)
	}
	if p := From(&sandbox.Error{Code: sandbox.CodeSandboxBusy, SandboxID: "sb", OperationID: "op_2"}, Options{OperationID: "op_1"}); p.SandboxID != "sb" || p.OperationID != "op_1" {
		t.Errorf("what the error knows is shown unless the caller knows better: %+v", p)
	}
	if rec.Code != 409 || rec.Header().Get("Content-Type") != ContentType {
		t.Errorf("status %d, content type %q", rec.Code, rec.Header().Get("Content-Type"))
	}
}

func TestWriteKeepsForeignErrorsInTheLog(t *testing.T) {
	t.Parallel()
	rec := httptest.NewRecorder()
	Write(rec, errors.New("open /var/lib/space/x: denied"), Options{})
	if rec.Code != 500 || strings.Contains(rec.Body.String(), "/var/lib") {
		t.Errorf("status %d, body %s", rec.Code, rec.Body)
	}
	var m map[string]any
	if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"status", "code", "message", "cause", "remedy", "retryable"} {
		if _, ok := m[key]; !ok {
			t.Errorf("%q is missing", key)
		}
	}
}

// TestEveryErrorSaysWhatHelps: errors that know no remedy get the general one of their code.
func TestEveryErrorSaysWhatHelps(t *testing.T) {
	t.Parallel()
	for _, info := range sandbox.Codes() {
		if got := From(sandbox.Errorf(info.Code, "x"), Options{}).Remedy; got == "" || got != info.Remedy {
			t.Errorf("%s: %q, want %q", info.Code, got, info.Remedy)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		code  sandbox.Code
		after time.Duration
		want  string
	}{
		{sandbox.CodeUnavailable, 0, "1"},
		{sandbox.CodeCapacity, 2500 * time.Millisecond, "3"},
		{sandbox.CodeSandboxBusy, 5 * time.Second, ""},
	} {
		rec := httptest.NewRecorder()
		Write(rec, sandbox.Errorf(row.code, "x"), Options{RetryAfter: row.after})
		if got := rec.Header().Get("Retry-After"); got != row.want {
			t.Errorf("%s: Retry-After %q, want %q", row.code, got, row.want)
		}
	}
}

func TestEveryCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	for _, info := range sandbox.Codes() {
		rec := httptest.NewRecorder()
		Write(rec, &sandbox.Error{Code: info.Code, Message: "m"}, Options{})
		var p Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.Code != string(info.Code) || p.Status != info.Status || rec.Code != info.Status {
			t.Errorf("%s: status %d, %+v, %v", info.Code, rec.Code, p, err)
		}
	}
}
