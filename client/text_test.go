package client

import (
	"reflect"
	"strings"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

func TestCheckText(t *testing.T) {
	t.Parallel()
	good := apiv1.Exec{Argv: []string{"printf", "\ufffd\u00ff"}, Env: map[string]string{"A": "é"}, PTY: &apiv1.PTY{Cols: 1, Rows: 1}}
	if err := checkText(reflect.ValueOf(good), ""); err != nil {
		t.Error(err)
	}
	for want, in := range map[string]any{
		"argv[1] ":       apiv1.Exec{Argv: []string{"echo", "\xff"}},
		"env[\"A\"] ":    &apiv1.CreateCommand{Argv: []string{"true"}, Env: map[string]string{"A": "\xc0\xaf"}},
		"name env[\"\\x": apiv1.CreateSandbox{Env: map[string]string{"\xfe": ""}},
		"cwd ":           apiv1.Exec{Argv: []string{"true"}, Cwd: "/\xed\xa0\x80"},
	} {
		if err := checkText(reflect.ValueOf(in), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
