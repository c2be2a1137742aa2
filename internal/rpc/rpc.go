// Package rpc is how our processes talk to each other: HTTP (1.1 and h2c) over unix sockets whose peers are known by
// their uid, Connect services on top, and one mapping of errors that keeps code, cause and remedy.
package rpc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

// BaseURL is the base of every call over HTTPClient; the host in it is never resolved.
const BaseURL = "http://space"

// Limits of one connection between our own processes.
const (
	readHeaderTimeout = 10 * time.Second
	shutdownGrace     = 3 * time.Second
	maxHeaderBytes    = 64 << 10
)

// What one side of a connection keeps of bodies that nobody reads yet. All streams together never fill a connection's
// share: else one body that waits (input of a command that does not read, a client that does not take its file) would
// hold up every other call on the connection.
const (
	maxStreams       = 250 // a client with more opens another connection
	streamBuffer     = 128 << 10
	connectionBuffer = maxStreams * streamBuffer
)

func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReceiveBufferPerStream:     streamBuffer,
		MaxReceiveBufferPerConnection: connectionBuffer,
		SendPingTimeout:               15 * time.Second,
		PingTimeout:                   15 * time.Second,
	}
}

// Protocols returns HTTP/1.1 and HTTP/2 without TLS, as all our internal servers speak them.
func Protocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// Serve answers connections of l with h until ctx is done, then waits shutdownGrace for requests under way and cuts
// the rest. Streams see their request context end as soon as ctx does. It closes l.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler:           h,
		Protocols:         Protocols(),
		HTTP2:             http2Config(),
		ReadHeaderTimeout: readHeaderTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
	return ServeUntil(ctx, l, srv, shutdownGrace)
}

// ServeUntil runs srv on l until ctx is done, then waits grace for requests under way and cuts the rest. Requests see
// ctx end, unless srv has a base context of its own. It closes l.
func ServeUntil(ctx context.Context, l net.Listener, srv *http.Server, grace time.Duration) error {
	if srv.BaseContext == nil {
		srv.BaseContext = func(net.Listener) context.Context { return ctx }
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := srv.Shutdown(ending)
		if err != nil {
			err = srv.Close()
		}
		stopped <- err
	})
	err := srv.Serve(l)
	if stop() { // the server ended by itself
		return errors.Join(err, srv.Close())
	}
	return <-stopped
}

// Plain makes a Connect client ask for answers that are not compressed: between processes of one host that costs more
// time and memory than the bytes do.
func Plain() connect.ClientOption { return connect.WithAcceptCompression("gzip", nil, nil) }

// HTTPClient makes an h2c client all of whose connections come from dial. Base URL: BaseURL. It has no overall
// timeout, since streams stay open: give each call a context.
func HTTPClient(dial func(context.Context) (net.Conn, error)) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		Protocols:              p,
		DisableCompression:     true,
		HTTP2:                  http2Config(),
		MaxResponseHeaderBytes: maxHeaderBytes,
	}}
}
