package agent

import (
	"encoding/json"
	"net/http"

	"github.com/space-sandbox/space/internal/sandbox"
)

// problem is the body of an error on the raw routes.
type problem struct {
	Code    sandbox.Code `json:"code"`
	Message string       `json:"message"`
	Cause   string       `json:"cause,omitempty"`
	Remedy  string       `json:"remedy,omitempty"`
}

// writeError answers with err in the form of the raw routes and the HTTP status of its code. What an error wraps is
// its cause, since the other end is ours.
func writeError(w http.ResponseWriter, err error) {
	e := sandbox.AsError(err)
	p := problem{Code: e.Code, Message: e.Message, Cause: e.Cause, Remedy: e.Remedy}
	if p.Cause == "" && e.Err != nil {
		p.Cause = e.Err.Error()
	}
	writeJSON(w, e.Code.Info().Status, p)
}

// writeJSON answers with v. A client that has gone away is nobody's error.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"code":"internal","message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
