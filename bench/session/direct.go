package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver of the product's record, in which the agent's token is

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
)

// direct speaks with the agent of a machine over bare TCP connections: what the way through SPACE is measured against.
// HTTP/1.1, nothing between, and of a command only the calls that it cannot do without.
type direct struct {
	http  *http.Client
	agent agentv1connect.AgentServiceClient
	token string
	n     int // commands so far
}

const agentURL = "http://169.254.0.21:1018" // in every sandbox's namespace

func newDirect(ctx context.Context, dataDir, sandboxID string) (*direct, error) {
	db, err := sql.Open("sqlite", "file:"+url.PathEscape(filepath.Join(dataDir, "control", "space.db"))+"?mode=ro")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	d := &direct{}
	if err := db.QueryRowContext(ctx, "SELECT agent_token FROM sandboxes WHERE id = ?", sandboxID).Scan(&d.token); err != nil {
		return nil, fmt.Errorf("token of the agent: %w", err)
	}
	found, err := filepath.Glob("/run/netns/space-*-" + sandboxID)
	if err != nil || len(found) != 1 {
		return nil, errors.Join(err, fmt.Errorf("namespaces of the sandbox: %q", found))
	}
	d.http = &http.Client{Transport: &http.Transport{DisableCompression: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialInside(ctx, found[0], network, addr)
		}}}
	d.agent = agentv1connect.NewAgentServiceClient(d.http, agentURL, connect.WithInterceptors(bearer(d.token)),
		connect.WithAcceptCompression("gzip", nil, nil))
	return d, nil
}

// dialInside connects on a thread that is in the namespace, and that ends with its goroutine.
func dialInside(ctx context.Context, namespace, network, addr string) (net.Conn, error) {
	type dialed struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialed, 1)
	go func() {
		runtime.LockOSThread() // for good: nobody else may get this thread
		f, err := os.Open(namespace)
		if err != nil {
			done <- dialed{err: err}
			return
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- dialed{err: err}
			return
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr) // a numeric address: the socket is made here
		done <- dialed{conn, err}
	}()
	d := <-done
	return d.conn, d.err
}

// exec runs a command to its end and returns its standard output. What is done only to forget the command is not timed.
func (d *direct) exec(ctx context.Context, argv []string) (out []byte, took time.Duration, err error) {
	d.n++
	id := fmt.Sprintf("proc_direct%014d", d.n)
	begin := time.Now()
	_, err = d.agent.CreateProcess(ctx, connect.NewRequest(&agentv1.CreateProcessRequest{ProcessId: id,
		Spec: &agentv1.ProcessSpec{Argv: argv, User: "user"}}))
	if err != nil {
		return nil, 0, err
	}
	stream, err := d.agent.Attach(ctx, connect.NewRequest(&agentv1.AttachRequest{ProcessId: id, Start: true, Follow: true,
		Positions: []*agentv1.StreamPosition{{Stream: agentv1.OutputStream_OUTPUT_STREAM_STDOUT}, {Stream: agentv1.OutputStream_OUTPUT_STREAM_STDERR}}}))
	if err != nil {
		return nil, 0, err
	}
	var exit *agentv1.Process
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *agentv1.AttachResponse_Data_:
			out = append(out, e.Data.GetData()...)
		case *agentv1.AttachResponse_Exit:
			exit = e.Exit
		}
	}
	took = time.Since(begin)
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return nil, 0, err
	}
	if exit.GetState() != agentv1.ProcessState_PROCESS_STATE_EXITED || exit.GetExitCode() != 0 {
		return nil, 0, fmt.Errorf("the command ended as %v", exit)
	}
	_, err = d.agent.AckProcesses(ctx, connect.NewRequest(&agentv1.AckProcessesRequest{ProcessIds: []string{id}}))
	return out, took, err
}

// put stores content in a file and returns its SHA-256 as the agent says it.
func (d *direct) put(ctx context.Context, content []byte) (sum string, err error) {
	res, err := d.file(ctx, http.MethodPut, bytes.NewReader(content))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var stored struct{ SHA256 string }
	return stored.SHA256, json.NewDecoder(res.Body).Decode(&stored)
}

func (d *direct) get(ctx context.Context, to io.Writer) error {
	res, err := d.file(ctx, http.MethodGet, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(to, res.Body)
	return err
}

func (d *direct) file(ctx context.Context, method string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, agentURL+"/files?path=direct&user=user", body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	res, err := d.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1000)) // only to be shown
		return nil, errors.Join(fmt.Errorf("%s: %s: %s", method, res.Status, strings.TrimSpace(string(text))), res.Body.Close())
	}
	return res, nil
}

// bearer sends the token with every call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, req)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
