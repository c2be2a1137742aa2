package ingress

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

// wsClient is a client of the attach protocol that keeps all it was sent.
type wsClient struct {
	t       *testing.T
	conn    *websocket.Conn
	started startedFrame
	out     map[byte]string
	control []string // raw control frames
	closed  websocket.CloseError
}

func (p *plane) attachURL(query string) string {
	return p.server.URL + "/v1/attach/" + string(p.claims.CommandID) + query
}

// attach connects and reads the started frame.
func (p *plane) attach(t *testing.T, query string) *wsClient {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), p.attachURL(query), &websocket.DialOptions{
		Subprotocols: []string{apiv1.AttachProtocol},
		HTTPHeader:   http.Header{"Authorization": {"Bearer " + p.token(t, nil)}},
	})
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	c := &wsClient{t: t, conn: conn, out: map[byte]string{}}
	c.step()
	if len(c.control) != 1 || json.Unmarshal([]byte(c.control[0]), &c.started) != nil || c.started.Type != apiv1.FrameStarted {
		t.Fatalf("the first frame is no started: %q %v", c.control, c.out)
	}
	return c
}

// step reads one frame; false: the connection is closed.
func (c *wsClient) step() bool {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	kind, data, err := c.conn.Read(ctx)
	if err != nil {
		if ctx.Err() != nil {
			c.t.Fatalf("no frame came; so far %q %q", c.out, c.control)
		}
		c.closed = websocket.CloseError{Code: websocket.CloseStatus(err), Reason: err.Error()}
		return false
	}
	if kind != websocket.MessageBinary || len(data) == 0 {
		c.t.Fatalf("a frame of kind %v with %d bytes", kind, len(data))
	}
	if data[0] == apiv1.ChannelControl {
		c.control = append(c.control, string(data[1:]))
	} else {
		c.out[data[0]] += string(data[1:])
	}
	return true
}

// until reads until cond holds.
func (c *wsClient) until(what string, cond func() bool) {
	c.t.Helper()
	for !cond() {
		if !c.step() {
			c.t.Fatalf("closed (%v) before %s; got %q %q", c.closed, what, c.out, c.control)
		}
	}
}

func (c *wsClient) stdout(want string) {
	c.t.Helper()
	c.until(fmt.Sprintf("stdout is %q", want), func() bool { return c.out[apiv1.ChannelStdout] == want })
}

// rest reads to the close and returns it.
func (c *wsClient) rest() websocket.CloseError {
	c.t.Helper()
	for c.step() {
	}
	return c.closed
}

func (c *wsClient) send(channel byte, data string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageBinary, append([]byte{channel}, data...)); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// await waits for a state of the fake guest.
func (g *fakeGuest) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		g.mu.Lock()
		ok, changed := cond(), g.changed
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}
