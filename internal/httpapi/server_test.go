package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/space-sandbox/space/internal/httpapi"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
	"github.com/space-sandbox/space/internal/sandbox"
)

// faulty panics, or fails, where a test says so.
type faulty struct {
	*httpapitest.Fake
	get   func(ctx context.Context) (sandbox.Sandbox, error)
	files http.HandlerFunc
}

func (f faulty) GetSandbox(ctx context.Context, _ string) (sandbox.Sandbox, error) { return f.get(ctx) }

func (f faulty) ProxyFiles(w http.ResponseWriter, r *http.Request, _, _ string) { f.files(w, r) }

// serve runs f behind the API and returns it with its log.
func (f faulty) serve(t *testing.T) (*httpapitest.Server, *bytes.Buffer) {
	t.Helper()
	f.Fake = httpapitest.NewFake()
	log := &bytes.Buffer{}
	handler, err := httpapi.New(httpapi.Config{Control: f, Logger: slog.New(slog.NewTextHandler(log, nil)), DataPlaneURL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &httpapitest.Server{URL: server.URL, Fake: f.Fake}, log
}

func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	s, log := faulty{get: func(context.Context) (sandbox.Sandbox, error) { panic("secret of the house") }}.serve(t)
	a := request(t, s, "GET", "/v1/sandboxes/box", "")
	problem(t, a, 500, "internal")
	if strings.Contains(string(a.body), "secret") {
		t.Errorf("%s", a.body)
	}
	if !strings.Contains(log.String(), "secret of the house") || !strings.Contains(log.String(), "stack=") {
		t.Errorf("log: %s", log)
	}
	if a := request(t, s, "GET", "/healthz", ""); a.StatusCode != 200 {
		t.Errorf("after a panic: %d", a.StatusCode)
	}
}

// A panic after the answer has begun cuts the connection: a part must not look like the whole.
func TestPanicInTheMiddleCutsTheConnection(t *testing.T) {
	t.Parallel()
	s, _ := faulty{files: func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "half")
		http.NewResponseController(w).Flush()
		panic("no more")
	}}.serve(t)
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/v1/sandboxes/box/files?path=a", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", httpapitest.AdminKey)
	resp, err := new(http.Client).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q to its end", body)
	}
}

func TestForeignErrorsStayInTheLog(t *testing.T) {
	t.Parallel()
	s, log := faulty{get: func(context.Context) (sandbox.Sandbox, error) {
		return sandbox.Sandbox{}, fmt.Errorf("open /var/lib/space/x: %w", io.ErrUnexpectedEOF)
	}}.serve(t)
	a := request(t, s, "GET", "/v1/sandboxes/box", "")
	problem(t, a, 500, "internal")
	if strings.Contains(string(a.body), "/var/lib") || !strings.Contains(log.String(), "/var/lib/space/x") {
		t.Errorf("body %s, log %s", a.body, log)
	}
}

// Every code of the table leaves as its status, with Retry-After where nothing happened.
func TestEveryCode(t *testing.T) {
	t.Parallel()
	next := make(chan sandbox.Code, 1)
	s, _ := faulty{get: func(context.Context) (sandbox.Sandbox, error) {
		return sandbox.Sandbox{}, fmt.Errorf("wrapped: %w", sandbox.Errorf(<-next, "no"))
	}}.serve(t)
	for _, c := range sandbox.Codes() {
		next <- c.Code
		a := request(t, s, "GET", "/v1/sandboxes/box", "")
		if p := problem(t, a, c.Status, string(c.Code)); p.Retryable != c.Retryable {
			t.Errorf("%s: retryable %v", c.Code, p.Retryable)
		}
		if got := a.Header.Get("Retry-After") != ""; got != (c.Status == 429 || c.Status == 503) {
			t.Errorf("%s: Retry-After %q", c.Code, a.Header.Get("Retry-After"))
		}
	}
}

// pipeListener serves in-memory connections, so that time can be the test's own.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l pipeListener) Close() error   { close(l.done); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// bubble serves the API inside a synctest bubble and returns a connection to it.
func bubble(t *testing.T, control httpapi.Control) net.Conn {
	t.Helper()
	handler, err := httpapi.New(httpapi.Config{Control: control, Logger: slog.New(slog.DiscardHandler), DataPlaneURL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	server := httpapi.NewServer(handler, slog.New(slog.DiscardHandler))
	l := pipeListener{make(chan net.Conn), make(chan struct{})}
	go server.Serve(l)
	client, peer := net.Pipe()
	l.conns <- peer
	t.Cleanup(func() { client.Close(); server.Close() })
	return client
}

const keyHeader = "X-API-Key: " + httpapitest.AdminKey + "\r\n"

// A client that stops in the middle of a body is answered and let go.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := bubble(t, httpapitest.NewFake())
		start := time.Now()
		fmt.Fprint(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n"+keyHeader+"Content-Length: 20\r\n\r\n{")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !bytes.Contains(body, []byte("did not arrive within 30s")) {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A client that sends a byte now and then does not hold a JSON call open either.
func TestTricklingBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := bubble(t, httpapitest.NewFake())
		done := make(chan struct{})
		defer close(done)
		go func() {
			fmt.Fprint(conn, "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n"+keyHeader+"Content-Length: 2000\r\n\r\n")
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					_, _ = conn.Write([]byte(" ")) // fails once the server has had enough
				case <-done:
					return
				}
			}
		}()
		start := time.Now()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); resp.StatusCode != 400 || took != 30*time.Second {
			t.Errorf("status %d after %v", resp.StatusCode, took)
		}
	})
}

// A client that sends no header is cut off.
func TestSlowHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := bubble(t, httpapitest.NewFake())
		start := time.Now()
		fmt.Fprint(conn, "GET /v1/sandboxes HTTP/1.1\r\n")
		_, err := io.ReadAll(conn)
		if took := time.Since(start); err != nil || took != 10*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// A client that does not read its answer is cut off a minute after the last byte it took.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Duration, 1)
		f := faulty{Fake: httpapitest.NewFake(), files: func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			for {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					ended <- time.Since(start)
					return
				}
			}
		}}
		conn := bubble(t, f)
		fmt.Fprint(conn, "GET /v1/sandboxes/box/files?path=a HTTP/1.1\r\nHost: x\r\n"+keyHeader+"\r\n")
		if took := <-ended; took != time.Minute {
			t.Errorf("ended after %v", took)
		}
	})
}

// A wait longer than every deadline is answered, and the connection is good for the next request.
func TestLongWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := httpapitest.NewFake()
		conn := bubble(t, f)
		in := bufio.NewReader(conn)
		body := `{"template":"slow"}`
		for range 2 {
			start := time.Now()
			fmt.Fprintf(conn, "POST /v1/sandboxes?wait=200 HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", keyHeader, len(body), body)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); resp.StatusCode != 202 || took != 200*time.Second {
				t.Errorf("status %d after %v", resp.StatusCode, took)
			}
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	for _, cfg := range []httpapi.Config{{}, {Control: httpapitest.NewFake()}, {Control: httpapitest.NewFake(), Logger: logger}} {
		if _, err := httpapi.New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}
