package ingress

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of one data-plane connection before and between requests.
const (
	readHeaderTimeout = 10 * time.Second
	keepAliveTimeout  = 60 * time.Second
	maxHeaderBytes    = 16 << 10
)

// NewServer makes the HTTP server of the data plane: HTTP/1.1 only, since that is what a WebSocket upgrades from and
// one request's flow control cannot then hold back another's. What net/http has to say about single clients is debug
// output; it never includes a query.
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
