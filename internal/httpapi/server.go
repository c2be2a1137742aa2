package httpapi

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/space-sandbox/space/internal/telemetry"
)

// Config is what New needs.
type Config struct {
	Control Control
	Logger  *slog.Logger
	// Version is the build's version, shown by /v1/node and /healthz.
	Version string
	// DataPlaneURL is where clients reach the gateway, such as "http://127.0.0.1:7071".
	DataPlaneURL string
	// DevAuthWarning, when not empty, is added to the warnings of /v1/node: authentication is a development set-up.
	DevAuthWarning string
	// OpenMetrics lets /metrics be read without a key.
	OpenMetrics bool
}

func (c Config) validate() error {
	switch {
	case c.Control == nil:
		return errors.New("httpapi: Config.Control is missing")
	case c.Logger == nil:
		return errors.New("httpapi: Config.Logger is missing")
	case c.DataPlaneURL == "":
		return errors.New("httpapi: Config.DataPlaneURL is missing")
	}
	return nil
}

// server holds what the handlers share; but for counters it is immutable once New has returned.
type server struct {
	Config
	streams atomic.Int64 // of events, open now
	mux     *http.ServeMux
	api     huma.API
}

// New returns the handler of API v1. It is safe for concurrent use. Serve it with NewServer, or with a server that has
// no ReadTimeout and WriteTimeout: the handler sets deadlines itself, since a wait or a file may rightly take long.
func New(cfg Config) (http.Handler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := newServer(cfg)
	if err := s.addDocs(); err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	return telemetry.Traced(s.recovered(s.logged(http.HandlerFunc(s.route)))), nil
}

func newServer(cfg Config) *server {
	s := &server{Config: cfg, mux: http.NewServeMux()}
	s.api = huma.NewAPI(humaConfig(), adapter{s})
	s.addSandboxes()
	s.addTokens()
	s.addOperations()
	s.addCommands()
	s.addFiles()
	s.addTemplates()
	s.addEvents()
	s.addNode()
	s.addHealth()
	finishSpec(s.api.OpenAPI())
	return s
}

// Limits of the HTTP server itself.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// NewServer wraps a handler of New in a server with the timeouts and limits it expects. The caller gives it a listener.
func NewServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
