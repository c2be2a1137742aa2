package control

import (
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"

	"github.com/space-sandbox/space/internal/problem"
	"github.com/space-sandbox/space/internal/rpc"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/telemetry"
)

// ProxyFiles passes a request for files between client and gateway, its body unread. action is what follows "files/" in
// the path, "" for a file itself. The query is parsed and put together anew from the parameters that are known;
// everything else is refused.
func (c *Control) ProxyFiles(w http.ResponseWriter, r *http.Request, ref, action string) {
	target, err := c.filesTarget(r, ref, action)
	if err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	c.proxy(w, r, target)
}

// fileParameters returns the parameters of a route for files besides path and user; false when there is none.
func fileParameters(method, action string) ([]string, bool) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	switch method + " " + action {
	case "GET ", "GET archive":
		return nil, true
	case "PUT ":
		return []string{"mode", "create_parents", "if_match", "write"}, true
	case "DELETE ":
		return []string{"recursive", "missing_ok"}, true
	case "GET stat":
		return []string{"follow"}, true
	case "GET list":
		return []string{"depth", "limit", "cursor"}, true
	case "GET watch":
		return []string{"recursive"}, true
	case "POST mkdir":
		return []string{"mode", "create_parents"}, true
	case "POST move":
		return []string{"to", "overwrite"}, true
	case "PUT archive":
		return []string{"create_parents"}, true
	}
	return nil, false
}

func (c *Control) filesTarget(r *http.Request, ref, action string) (*url.URL, error) {
	extra, ok := fileParameters(r.Method, action)
	if !ok {
		return nil, sandbox.Errorf(sandbox.CodeMethodNotAllowed, "files have no %.20s %s", r.Method, action)
	}
	q, err := parameters(r, append([]string{"path", "user"}, extra...)...)
	if err != nil {
		return nil, err
	}
	if q.Get("path") == "" {
		return nil, invalid("path", "is required")
	}
	box, err := find(r.Context(), c.Store, ref)
	if err != nil {
		return nil, err
	}
	if box.State != sandbox.StateRunning {
		return nil, notIn(box, "access to files")
	}
	if q.Get("user") == "" {
		tpl, err := c.Store.Template(r.Context(), box.Template.Digest)
		if err != nil {
			return nil, storeError(err)
		}
		q.Set("user", tpl.User)
	}
	if err := c.gateway.check(); err != nil {
		return nil, err
	}
	path := "/raw/sandboxes/" + string(box.ID) + "/files"
	if action != "" {
		path += "/" + action
	}
	return rawURL(path, q), nil
}

// ProxyStdin passes a body on to a command's standard input, unread.
func (c *Control) ProxyStdin(w http.ResponseWriter, r *http.Request, id sandbox.CommandID) {
	target, err := c.stdinTarget(r, id)
	if err != nil {
		problem.Write(w, err, problem.Options{})
		return
	}
	c.proxy(w, r, target)
}

func (c *Control) stdinTarget(r *http.Request, id sandbox.CommandID) (*url.URL, error) {
	q, err := parameters(r, "offset", "eof")
	if err != nil {
		return nil, err
	}
	if v := q.Get("offset"); v != "" {
		if _, err := strconv.ParseUint(v, 10, 63); err != nil {
			return nil, invalid("offset", "must be a number of bytes")
		}
	}
	if v := q.Get("eof"); v != "" && v != "true" && v != "false" {
		return nil, invalid("eof", "must be true or false")
	}
	cmd, err := c.command(r.Context(), id)
	if err != nil {
		return nil, err
	}
	switch {
	case !cmd.Spec.Stdin:
		return nil, &sandbox.Error{Code: sandbox.CodeStdinClosed, Message: "the process has no standard input",
			Cause: "the command session was created without stdin", Remedy: `create it with "stdin": true`}
	case cmd.State.Ended():
		return nil, notRunning(cmd)
	}
	if err := c.mustRun(r.Context(), cmd.SandboxID, "standard input"); err != nil {
		return nil, err
	}
	if err := c.gateway.check(); err != nil {
		return nil, err
	}
	return rawURL("/raw/sandboxes/"+string(cmd.SandboxID)+"/processes/"+string(cmd.ProcessID)+"/stdin", q), nil
}

// parameters returns the request's query when it has only allowed parameters, each once.
func parameters(r *http.Request, allowed ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("query", "cannot be read")
	}
	out := url.Values{}
	for name, values := range q {
		if !slices.Contains(allowed, name) {
			return nil, invalid(name, "is not a parameter of this route")
		}
		if len(values) != 1 {
			return nil, invalid(name, "is given more than once")
		}
		out.Set(name, values[0])
	}
	return out, nil
}

func rawURL(path string, q url.Values) *url.URL {
	u, err := url.Parse(rpc.BaseURL)
	if err != nil {
		panic(err) // a constant
	}
	u.Path, u.RawQuery = path, q.Encode()
	return u
}

// proxy carries one request. Only the headers named here pass, in either direction.
func (c *Control) proxy(w http.ResponseWriter, r *http.Request, target *url.URL) {
	sent := &countedBody{body: r.Body}
	r = r.Clone(r.Context())
	r.Body = sent
	p := &httputil.ReverseProxy{
		Transport:     c.GatewayHTTP.Transport,
		FlushInterval: -1, // at once
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Host = target, target.Host
			pr.Out.Header = only(pr.In.Header, "Content-Type", "Range", "Last-Event-ID")
			pr.Out.Header.Set("User-Agent", "") // none
			telemetry.Inject(pr.In.Context(), pr.Out.Header)
		},
		ModifyResponse: func(res *http.Response) error {
			// The API sets Cache-Control and X-Content-Type-Options itself, for all answers.
			res.Header = only(res.Header, "Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "ETag",
				"Last-Modified", "Retry-After")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { c.proxyFailed(w, r, sent, err) },
	}
	p.ServeHTTP(w, r)
}

func only(h http.Header, names ...string) http.Header {
	out := http.Header{}
	for _, name := range names {
		if v := h.Values(name); len(v) > 0 {
			out[http.CanonicalHeaderKey(name)] = slices.Clone(v)
		}
	}
	return out
}

// proxyFailed answers when the gateway did not. Only when none of the body was sent is it certain that nothing happened.
func (c *Control) proxyFailed(w http.ResponseWriter, r *http.Request, sent *countedBody, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		problem.Write(w, sandbox.Errorf(sandbox.CodeBodyTooLarge, "the body is larger than %d bytes", e.Limit), problem.Options{})
		return
	}
	c.Logger.WarnContext(r.Context(), "a body could not be passed to the gateway", "error", err)
	e := &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox cannot be reached at the moment",
		Cause: "the gateway does not answer", Remedy: "try again in a moment", Err: err}
	dial, ok := errors.AsType[*net.OpError](err)
	if sent.n.Load() > 0 && (!ok || dial.Op != "dial") && r.Method == http.MethodPost {
		e.Code, e.Cause = sandbox.CodeGuestFault, "the gateway went away while bytes were on their way"
		e.Remedy = "see stdin_bytes of the command for how many arrived, and go on with offset"
	}
	problem.Write(w, e, problem.Options{})
}
