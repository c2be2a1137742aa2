package httpapitest

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/space-sandbox/space/internal/httpapi"
)

// Server is a Fake behind the real API handler, with its data plane, on loopback.
type Server struct {
	*Fake
	URL     string // of the API
	DataURL string // of the data plane
	Handler http.Handler
}

// Serve starts a Server that ends with the test.
func Serve(t testing.TB) *Server {
	t.Helper()
	fake := NewFake()
	t.Cleanup(fake.Close)
	dataPlane := httptest.NewServer(fake.DataPlane())
	t.Cleanup(dataPlane.Close)
	t.Cleanup(dataPlane.CloseClientConnections)
	fake.dataURL = dataPlane.URL
	handler, err := httpapi.New(httpapi.Config{Control: fake, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Version: "v0.0.1-test",
		DataPlaneURL: dataPlane.URL, DevAuthWarning: "development authentication: not for production"})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewUnstartedServer(handler)
	api.Config = httpapi.NewServer(handler, slog.New(slog.DiscardHandler))
	api.Start()
	t.Cleanup(api.Close)
	return &Server{Fake: fake, URL: api.URL, DataURL: dataPlane.URL, Handler: handler}
}
