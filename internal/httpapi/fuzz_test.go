package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"
	"unicode/utf8"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// What passes the check is read by encoding/json without loss: valid, one object, only known fields, none twice.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{`{"template":"mini","env":{"A":"b"},"vcpus":2}`, `{"template":"mini","template":"x"}`, `{"Template":"x"}`, `{"a":1}`,
		`{"template":"\ud800\udc00"}`, `{"template":"\ud800"}`, `{"template":"mini"}{}`, `[]`, ` {"template":null} `, `{"metadata":{"a":{"b":[]}}}`, `{"vcpus":1e999}`,
		`{"env":{"a":"b","a":"c"}}`, "\xff", `{`, `{"x":"\`} {
		f.Add([]byte(seed))
	}
	api := newServer(Config{}).api
	registry := api.OpenAPI().Components.Schemas
	schema := registry.Schema(reflect.TypeFor[apiv1.CreateSandbox](), true, "")
	f.Fuzz(func(t *testing.T, data []byte) {
		err := checkJSON(data, schema, registry)
		if err != nil {
			e := sandbox.AsError(err)
			if status := e.Code.Info().Status; status != 400 {
				t.Errorf("%q: %v", data, err)
			}
			return
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			t.Fatalf("%q was accepted", data)
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		var got apiv1.CreateSandbox
		if err := dec.Decode(&got); err != nil {
			if _, types := errors.AsType[*json.UnmarshalTypeError](err); !types { // types are huma's to check
				t.Errorf("%q was accepted: %v", data, err)
			}
		}
	})
}

// A wait is never longer than the contract says, however it is written.
func FuzzWait(f *testing.F) {
	for _, s := range [][2]string{{"30", ""}, {"30s", ""}, {"", "wait=30"}, {"", `respond-async, wait="5"; x`}, {"NaN", ""}, {"1e-400", ""}, {"0x1p4", ""}, {"-0", "wait="}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, query, prefer string) {
		d, asked, err := WaitParams{Wait: query, Prefer: prefer}.duration()
		if d < 0 || d > 300*time.Second || err != nil && (asked || d != 0) || !asked && d != 0 {
			t.Errorf("%q, %q: %v %t %v", query, prefer, d, asked, err)
		}
	})
}
