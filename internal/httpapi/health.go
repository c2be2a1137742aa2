package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// readyTimeout bounds one check of readiness.
const readyTimeout = 5 * time.Second

func (s *server) addHealth() {
	open := map[string]any{metaOpen: true}
	huma.Register(s.api, huma.Operation{
		OperationID: "healthz", Method: http.MethodGet, Path: "/healthz", Tags: []string{"Health"},
		Summary: "Is control alive?", Responses: errorResponses(), Metadata: open, Security: []map[string][]string{},
	}, s.healthz)
	huma.Register(s.api, huma.Operation{
		OperationID: "readyz", Method: http.MethodGet, Path: "/readyz", Tags: []string{"Health"},
		Summary: "Can it take work?", Responses: errorResponses(), Metadata: open, Security: []map[string][]string{},
		Description: "Ready means that the store, node and gateway answer; else unavailable (503).",
	}, s.readyz)
	metrics := huma.Operation{
		OperationID: "metrics", Method: http.MethodGet, Path: "/metrics", Tags: []string{"Health"},
		Summary: "Metrics in the Prometheus text form", Metadata: map[string]any{metaOpen: s.OpenMetrics},
		Description: "Of all processes: control, and what node and gateway show it.",
		Responses:   withResponse(http.StatusOK, "Prometheus text form", map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}}),
	}
	s.raw(metrics, s.metrics)
}

type healthOutput struct{ Body apiv1.Health }

func (s *server) healthz(context.Context, *struct{}) (*healthOutput, error) {
	return &healthOutput{Body: apiv1.Health{Status: "ok", Version: s.Version}}, nil
}

func (s *server) readyz(ctx context.Context, _ *struct{}) (*healthOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := s.Control.Ready(ctx); err != nil {
		cause := sandbox.AsError(err)
		return nil, s.refused(ctx, "readyz", &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "SPACE is not ready",
			Cause: cause.Message, Remedy: "try again in a moment; the log of space up says what is missing", Err: err})
	}
	return &healthOutput{Body: apiv1.Health{Status: "ready", Version: s.Version}}, nil
}

func (s *server) metrics(w http.ResponseWriter, r *http.Request) {
	var buf bytes.Buffer // a fault half-way must not look like an answer
	if err := s.Control.Metrics(r.Context(), &buf); err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", telemetry.ContentType)
	_, _ = w.Write(buf.Bytes())
}
