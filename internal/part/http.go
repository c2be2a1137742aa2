package part

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/space-sandbox/space/internal/rpc"
)

// httpGrace is how long requests under way may take when a part stops; streams are cut after it and clients resume.
const httpGrace = 2 * time.Second

// serveHTTP serves clients on l until ctx is done. Requests see ctx end, unless the server has a base context of its own.
func serveHTTP(ctx context.Context, l net.Listener, srv *http.Server) error {
	return rpc.ServeUntil(ctx, limit(l, maxConnections), srv, httpGrace)
}
