// Package guest is the host-side client of the agent in a guest. The guest is hostile: everything it answers is
// bounded in size and time, checked, and rebuilt from the fields that are known, so that nothing else of it gets
// further into the house. A guest that answers nonsense is sandbox.CodeGuestFault, one that cannot be reached
// sandbox.CodeUnavailable, one that is too slow sandbox.CodeGuestNotReady.
package guest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
)

// Config is what a Client is made of.
type Config struct {
	// Dial makes a connection to the agent. Each attempt has a deadline of its own.
	Dial func(ctx context.Context) (net.Conn, error)
	// Token is the agent's.
	Token string
	// WriteTimeout ends a connection whose other end takes nothing for so long; 0 is 30 s. Pings do not find such a
	// one: the agent may well answer them, and send other things, without reading what waits behind.
	WriteTimeout time.Duration
	// PingAfter is when an agent of which nothing has come is asked whether it lives, and how long it may take to say so;
	// 0 is 15 s.
	PingAfter time.Duration
	// Trace, when not nil, adds to the headers of a call to which trace its context belongs; the agent logs it.
	Trace func(ctx context.Context, h http.Header)
}

// Bounds on what one guest can make us hold and wait for.
const (
	baseURL          = "http://agent" // never resolved
	dialTimeout      = 10 * time.Second
	callTimeout      = 30 * time.Second // of calls that the agent answers at once
	maxHeaderBytes   = 16 << 10
	maxMessageBytes  = 1 << 20 // of one answer
	maxRequestBytes  = 4 << 20
	streamBuffer     = 128 << 10 // received and not yet read, per stream
	connectionBuffer = 32 << 20
	maxReadFrame     = 64 << 10
	pingAfter        = 15 * time.Second
	bulkBuffer       = 64 << 10
	maxIdleBulk      = 2 // connections kept for the next transfers
	idleBulk         = 90 * time.Second
	writeTimeout     = 30 * time.Second
	maxConnections   = 96 // more than the contents of files that an agent lets be on their way
)

// Client speaks with the agent of one machine. Safe for concurrent use. End it with Close.
type Client struct {
	cfg    Config
	agent  agentv1connect.AgentServiceClient
	calls  *http.Transport
	shared *http.Client // over calls
	bodies *http.Client // over bulk
	bulk   *http.Transport

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	spare  net.Conn // connected already, for the next use
}

// ErrClosed is what dialing gives after Close.
var ErrClosed = errors.New("the client of this guest is closed")

// errConnections: an agent that allows few streams on a connection, or none, does not get one for each call.
var errConnections = errors.New("there are as many connections to this guest as may be")

// NewClient makes a Client; it connects when first used. Calls share one connection; each content of a file that is on
// its way has its own.
func NewClient(cfg Config) *Client {
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = writeTimeout
	}
	if cfg.PingAfter == 0 {
		cfg.PingAfter = pingAfter
	}
	c := &Client{cfg: cfg, conns: map[net.Conn]struct{}{}}
	c.calls, c.bulk = c.callTransport(), c.bulkTransport()
	c.shared, c.bodies = httpClient(c.calls), httpClient(c.bulk)
	c.agent = agentv1connect.NewAgentServiceClient(c.shared, baseURL,
		connect.WithInterceptors(headers(cfg)),
		connect.WithReadMaxBytes(maxMessageBytes),
		connect.WithSendMaxBytes(maxRequestBytes),
		connect.WithAcceptCompression("gzip", nil, nil)) // none: output is not worth the time
	return c
}

func httpClient(t *http.Transport) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// bulkTransport carries contents over HTTP/1.1: the frames and windows of HTTP/2 cost a guest, which often has less than
// one processor, as much time as the bytes themselves.
func (c *Client) bulkTransport() *http.Transport {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		Protocols:              p,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		MaxIdleConns:           maxIdleBulk,
		MaxIdleConnsPerHost:    maxIdleBulk,
		IdleConnTimeout:        idleBulk,
		ReadBufferSize:         bulkBuffer,
		WriteBufferSize:        bulkBuffer,
	}
}

func (c *Client) callTransport() *http.Transport {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
		Protocols:              p,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: connectionBuffer,
			MaxReadFrameSize:              maxReadFrame,
			SendPingTimeout:               c.cfg.PingAfter,
			PingTimeout:                   c.cfg.PingAfter,
		},
	}
}

// dial gives the spare connection or makes one.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	conn := c.spare
	c.spare = nil
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	if conn != nil {
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return c.connect(ctx)
}

// connect makes a connection that Close ends.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	conn, err := c.cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(ErrClosed, conn.Close())
	}
	if len(c.conns) >= maxConnections {
		return nil, errors.Join(errConnections, conn.Close())
	}
	tracked := &trackedConn{Conn: conn, client: c}
	c.conns[tracked] = struct{}{}
	return tracked, nil
}

// trackedConn tells its client when it is closed, and waits for a reader only so long.
type trackedConn struct {
	net.Conn
	client *Client
}

func (t *trackedConn) Write(p []byte) (int, error) {
	if err := t.SetWriteDeadline(time.Now().Add(t.client.cfg.WriteTimeout)); err != nil {
		return 0, err
	}
	return t.Conn.Write(p)
}

func (t *trackedConn) Close() error {
	t.client.mu.Lock()
	delete(t.client.conns, t)
	t.client.mu.Unlock()
	return t.Conn.Close()
}

// Close ends all connections and with them all calls and streams. Idempotent.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	conns := c.conns
	c.conns = map[net.Conn]struct{}{}
	c.spare = nil
	c.mu.Unlock()
	for conn := range conns {
		_ = conn.Close() // what was on its way is lost, as is meant
	}
	c.calls.CloseIdleConnections()
	c.bulk.CloseIdleConnections()
}

// headers sends the token, and the trace, with every call.
type headers Config

func (c headers) add(ctx context.Context, h http.Header) {
	h.Set("Authorization", "Bearer "+c.Token)
	if c.Trace != nil {
		c.Trace(ctx, h)
	}
}

func (c headers) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c.add(ctx, req.Header())
		return next(ctx, req)
	}
}

func (c headers) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.add(ctx, conn.RequestHeader())
		return conn
	}
}

func (c headers) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
