package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	gatewayv1 "github.com/space-sandbox/space/api/proto/gateway/v1"
	"github.com/space-sandbox/space/api/proto/gateway/v1/gatewayv1connect"
	"github.com/space-sandbox/space/internal/auth"
	"github.com/space-sandbox/space/internal/sandbox"
)

// control may be taken over: no message of its is answered with a fault of ours, whatever is in it.
func FuzzControl(f *testing.F) {
	procedures := []string{gatewayv1connect.GatewayServiceConfigureProcedure, gatewayv1connect.GatewayServicePublishProcedure,
		gatewayv1connect.GatewayServiceUnpublishProcedure, gatewayv1connect.GatewayServiceCreateProcessProcedure,
		gatewayv1connect.GatewayServiceSignalProcessProcedure, gatewayv1connect.GatewayServiceWriteStdinProcedure,
		gatewayv1connect.GatewayServiceAckProcessesProcedure}
	route := &gatewayv1.Route{SandboxId: string(sandbox.NewID()), Generation: 1, AgentToken: strings.Repeat("a", 64)}
	seed := func(at int, m proto.Message) {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(at), data)
	}
	seed(0, &gatewayv1.ConfigureRequest{VerifyKey: auth.NewSigner().PublicKey(), Routes: []*gatewayv1.Route{route}})
	seed(1, &gatewayv1.PublishRequest{Route: route})
	seed(2, &gatewayv1.UnpublishRequest{SandboxId: route.SandboxId, Reason: "deleted"})
	seed(3, &gatewayv1.CreateProcessRequest{SandboxId: route.SandboxId, ProcessId: string(sandbox.NewProcessID()), CommandId: string(sandbox.NewCommandID())})
	f.Add(uint8(5), []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, procedure uint8, data []byte) {
		g := New(Deps{Logger: slog.New(slog.DiscardHandler), DialAgent: func(context.Context, sandbox.ID) (net.Conn, error) {
			return nil, sandbox.Errorf(sandbox.CodeUnavailable, "no guest here")
		}})
		defer g.Close()
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", procedures[int(procedure)%len(procedures)], bytes.NewReader(data))
		r.Header.Set("Content-Type", "application/proto")
		g.ControlHandler().ServeHTTP(w, r.WithContext(t.Context()))
		if w.Code == 500 || w.Code == 200 && w.Header().Get("Content-Type") != "application/proto" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// A query on the raw routes is read strictly.
func FuzzRawQuery(f *testing.F) {
	for _, s := range []string{"path=/a&user=root", "path=a&path=b", "x=1", "%", "a;b", "offset=1&eof=true", "offset=-1", "eof=maybe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		r := httptest.NewRequest("GET", "/raw/", nil)
		r.URL.RawQuery = raw
		q, err := rawQuery(r, "offset", "eof")
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalidArgument {
				t.Errorf("%q: %v", raw, err)
			}
			return
		}
		offset, _, err := stdinQuery(q)
		if err == nil && offset != nil && !q.Has("offset") || len(q) > 2 {
			t.Errorf("%q gave %v", raw, q)
		}
	})
}
