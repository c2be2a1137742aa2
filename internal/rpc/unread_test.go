package rpc_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/rpc"
)

// unread serves /stuck, which never reads its body nor lets its client read all of the answer, and /echo.
func unread(t *testing.T) *http.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := rpc.Listen("unix", path, -1)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/stuck", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- rpc.Serve(ctx, l, mux) }()
	t.Cleanup(func() { cancel(); <-done })
	hc := rpc.HTTPClient(rpc.DialUnix(path))
	t.Cleanup(hc.CloseIdleConnections)
	return hc
}

// Bodies that nobody reads, in both directions, must not hold up other calls on the same connection.
func TestUnreadBodiesHoldUpNobody(t *testing.T) {
	t.Parallel()
	hc := unread(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 64 {
		pr, pw := io.Pipe()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for ctx.Err() == nil {
				if _, err := pw.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}()
		t.Cleanup(func() { pr.Close(); <-sent })
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, rpc.BaseURL+"/stuck", pr)
		if err != nil {
			t.Fatal(err)
		}
		res, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
	}
	within, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	text := strings.Repeat("x", 4<<20)
	req, err := http.NewRequestWithContext(within, http.MethodPost, rpc.BaseURL+"/echo", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	res, err := hc.Do(req)
	if err != nil {
		t.Fatalf("a call beside bodies that are not read: %v", err)
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, []byte(text)) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(text), err)
	}
}
