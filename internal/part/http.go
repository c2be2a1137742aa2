package part

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// httpGrace is how long requests under way may take when a part stops; streams are cut after it and clients resume.
const httpGrace = 2 * time.Second

// serveHTTP serves clients on l until ctx is done. Requests see ctx end, unless the server has a base context of its own.
func serveHTTP(ctx context.Context, l net.Listener, srv *http.Server) error {
	l = limit(l, maxConnections)
	if srv.BaseContext == nil {
		srv.BaseContext = func(net.Listener) context.Context { return ctx }
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			stopped <- srv.Close()
			return
		}
		stopped <- nil
	})
	err := srv.Serve(l)
	if stop() { // it ended by itself
		return errors.Join(err, srv.Close())
	}
	return <-stopped
}
