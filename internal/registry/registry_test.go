package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/space-sandbox/space/internal/sandbox"
)

// loopback is a puller for registries of tests.
func loopback(t *testing.T) *Puller {
	t.Helper()
	p := New(Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	t.Cleanup(p.Close)
	return p
}

// serve starts a registry behind wrap.
func serve(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func push(t *testing.T, reference string, layers int64) v1.Image {
	t.Helper()
	img, err := random.Image(2048, layers)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPull(t *testing.T) {
	t.Parallel()
	host := serve(t, nil)
	img := push(t, host+"/a/b:v1", 3)
	var out bytes.Buffer
	if err := loopback(t).Pull(t.Context(), host+"/a/b:v1", &out); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for tr := tar.NewReader(&out); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index %s, %v", files["index.json"], err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range append([]v1.Descriptor{index.Manifests[0], m.Config}, m.Layers...) {
		if got := files[blobName(d.Digest)]; int64(len(got)) != d.Size {
			t.Errorf("%s has %d bytes, want %d", d.Digest, len(got), d.Size)
		}
	}
}

func TestPullErrors(t *testing.T) {
	t.Parallel()
	host := serve(t, nil)
	push(t, host+"/many:v1", MaxLayers+1)
	private := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	})
	endless := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			for block := bytes.Repeat([]byte(" "), 1<<16); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		})
	})
	for image, want := range map[string]sandbox.Code{
		host + "/none:v1":     sandbox.CodeRegistry,
		host + "/many:v1":     sandbox.CodeImageInvalid,
		private + "/x:v1":     sandbox.CodeRegistry,
		endless + "/x:v1":     sandbox.CodeImageInvalid,
		"Not An Image":        sandbox.CodeInvalidArgument,
		"/etc/passwd":         sandbox.CodeInvalidArgument,
		"../x":                sandbox.CodeInvalidArgument,
		host + "/a//x:v1":     sandbox.CodeInvalidArgument,
		"127.0.0.2:1/x/y:v1":  sandbox.CodeForbidden,
		"169.254.169.254/x:1": sandbox.CodeForbidden,
	} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			err := loopback(t).Pull(t.Context(), image, io.Discard)
			if sandbox.CodeOf(err) != want || sandbox.AsError(err).Message == "" {
				t.Errorf("%v (%s), want %s", err, sandbox.CodeOf(err), want)
			}
		})
	}
}

// Without the operator's word even loopback is refused, and so is a redirect that leads there.
func TestAddressIsCheckedWhereItConnects(t *testing.T) {
	t.Parallel()
	host := serve(t, nil)
	push(t, host+"/a:v1", 1)
	p := New(Config{})
	defer p.Close()
	if err := p.Pull(t.Context(), host+"/a:v1", io.Discard); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("loopback: %v", err)
	}
	redirecting := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet {
				http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusTemporaryRedirect)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	push(t, redirecting+"/a:v1", 1)
	// The library refuses redirects to such an address written out; ours is the check that a name cannot pass either.
	if err := loopback(t).Pull(t.Context(), redirecting+"/a:v1", io.Discard); err == nil || !strings.Contains(err.Error(), "169.254.169.254") {
		t.Errorf("redirect to the metadata service: %v", err)
	}
}

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	allow := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for address, ok := range map[string]bool{
		"1.1.1.1:443": true, "[2606:4700::1111]:443": true, "10.1.2.3:5000": true, "[::ffff:10.1.2.3]:80": true,
		"10.2.0.1:443": false, "127.0.0.1:443": false, "[::1]:443": false, "0.0.0.0:80": false, "[::]:80": false, "192.168.1.1:443": false,
		"172.16.0.1:443": false, "169.254.169.254:80": false, "[fe80::1%eth0]:80": false, "[fd00:ec2::254]:80": false, "100.100.100.200:80": false,
		"224.0.0.1:80": false, "255.255.255.255:80": false, "[::ffff:127.0.0.1]:80": false, "[64:ff9b::7f00:1]:80": false,
		"[2002:7f00:1::]:80": false, "198.18.0.1:80": false, "nonsense": false,
	} {
		if err := checkAddress(address, allow); (err == nil) != ok {
			t.Errorf("%s: %v, want ok %v", address, err, ok)
		}
	}
}

// A layer that is not what its manifest says ends the pull.
func TestChangedLayer(t *testing.T) {
	t.Parallel()
	host := serve(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			body := rec.Body.Bytes()
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && len(body) > 1000 {
				body[len(body)/2] ^= 1
			}
			for key, values := range rec.Header() {
				w.Header()[key] = values
			}
			w.WriteHeader(rec.Code)
			_, _ = w.Write(body)
		})
	})
	push(t, host+"/a:v1", 1)
	if err := loopback(t).Pull(t.Context(), host+"/a:v1", io.Discard); sandbox.CodeOf(err) != sandbox.CodeRegistry {
		t.Errorf("a changed layer: %v", err)
	}
}

func TestPullEndsWithItsContext(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 16)
	host := serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached <- struct{}{}; <-r.Context().Done() })
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	if err := loopback(t).Pull(ctx, host+"/a:v1", io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// An image of two architectures: the one of this machine is taken.
func TestPlatform(t *testing.T) {
	t.Parallel()
	host := serve(t, nil)
	mine, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	other, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	ref, err := name.ParseReference(host + "/multi:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := loopback(t).Pull(t.Context(), host+"/multi:v1", &out); err != nil {
		t.Fatal(err)
	}
	digest, err := mine.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out.Bytes(), []byte("blobs/sha256/"+digest.Hex)) {
		t.Error("the manifest for this machine is not in the archive")
	}
}
