package registry

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Limits of an image, as it is transferred.
const (
	// MaxBytes is the size of all compressed layers, and of an archive.
	MaxBytes = 8 << 30
	// MaxLayers is what the usual tools bear.
	MaxLayers = 128
	// maxDocument bounds manifests, indexes and configurations.
	maxDocument = 4 << 20
	// maxReference bounds the text of a reference.
	maxReference = 512
)

// Config is what a Puller is made of.
type Config struct {
	// Allow lists addresses that may be connected to although they are private, local or reserved.
	Allow []netip.Prefix
}

// Puller fetches images. Safe for concurrent use.
type Puller struct {
	transport *http.Transport
}

// New returns a Puller.
func New(cfg Config) *Puller {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: controlDial(cfg.Allow)}
	return &Puller{transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10}}
}

// Close closes idle connections.
func (p *Puller) Close() { p.transport.CloseIdleConnections() }

// CheckReference reports whether text names an image: registry/repository:tag or @digest, Docker Hub when no registry is named.
func CheckReference(text string) error {
	if _, err := parseReference(text); err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalidArgument, Message: "this is not the name of an image", Cause: err.Error(),
			Remedy: "use a form like docker.io/library/alpine:3.20",
			Fields: []sandbox.FieldError{{Field: "image", Message: "is not the name of an image"}}, Err: err}
	}
	return nil
}

func parseReference(text string) (name.Reference, error) {
	if len(text) > maxReference {
		return nil, fmt.Errorf("more than %d characters", maxReference)
	}
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, err
	}
	// The parser takes paths of files for repositories of Docker Hub with empty parts, or of a host of dots.
	for part := range strings.SplitSeq(ref.Context().Name(), "/") {
		if strings.Trim(part, ".") == "" {
			return nil, fmt.Errorf("could not parse reference: %q has an empty part", text)
		}
	}
	return ref, nil
}

// Check is CheckReference.
func (p *Puller) Check(image string) error { return CheckReference(image) }

// Pull fetches the image for this machine's architecture and writes it to w as an archive of the OCI layout.
func (p *Puller) Pull(ctx context.Context, reference string, w io.Writer) error {
	ref, err := parseReference(reference)
	if err != nil {
		return CheckReference(reference)
	}
	if err := p.pull(ctx, ref, w); err != nil {
		return pullError(ctx, reference, err)
	}
	return nil
}

func (p *Puller) pull(ctx context.Context, ref name.Reference, w io.Writer) error {
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	documents, err := remote.NewPuller(remote.WithTransport(bounded{p.transport, maxDocument}), remote.WithAuth(authn.Anonymous), remote.WithPlatform(platform))
	if err != nil {
		return err
	}
	blobs, err := remote.NewPuller(remote.WithTransport(bounded{p.transport, MaxBytes}), remote.WithAuth(authn.Anonymous))
	if err != nil {
		return err
	}
	desc, err := documents.Get(ctx, ref)
	if err != nil {
		return err
	}
	img, err := desc.Image()
	if err != nil {
		return err
	}
	out := &layout{tar: tar.NewWriter(w), have: map[v1.Hash]bool{}}
	manifest, err := out.documents(img)
	if err != nil {
		return err
	}
	for _, l := range manifest.Layers {
		layer, err := blobs.Layer(ctx, ref.Context().Digest(l.Digest.String()))
		if err != nil {
			return err
		}
		if err := out.layer(layer, l); err != nil {
			return err
		}
	}
	return out.tar.Close()
}

// layout writes an OCI layout as one tar archive.
type layout struct {
	tar  *tar.Writer
	have map[v1.Hash]bool
}

// documents writes index, manifest and configuration, and returns the manifest with its sizes checked.
func (l *layout) documents(img v1.Image) (*v1.Manifest, error) {
	raw, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	media, err := img.MediaType()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if err := checkManifest(m); err != nil {
		return nil, err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{{MediaType: media, Digest: digest, Size: int64(len(raw))}}})
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", index}, {blobName(digest), raw}, {blobName(m.Config.Digest), config}} {
		if err := l.header(f.name, int64(len(f.data))); err != nil {
			return nil, err
		}
		if _, err := l.tar.Write(f.data); err != nil {
			return nil, err
		}
	}
	l.have[digest], l.have[m.Config.Digest] = true, true
	return m, nil
}

func checkManifest(m *v1.Manifest) error {
	if len(m.Layers) > MaxLayers {
		return tooLarge("%d layers; at most %d are taken", len(m.Layers), MaxLayers)
	}
	if m.Config.Size < 0 || m.Config.Size > maxDocument {
		return tooLarge("a configuration of %d bytes; at most %d are taken", m.Config.Size, maxDocument)
	}
	var sum int64
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > MaxBytes-sum {
			return tooLarge("its layers have more than %d bytes", int64(MaxBytes))
		}
		sum += l.Size
	}
	return nil
}

func tooLarge(format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeImageInvalid, Message: "the image is over a limit", Cause: fmt.Sprintf(format, args...),
		Remedy: "use a smaller image"}
}

func (l *layout) layer(layer v1.Layer, desc v1.Descriptor) error {
	if l.have[desc.Digest] {
		return nil
	}
	l.have[desc.Digest] = true
	body, err := layer.Compressed() // reading it to the end checks the digest
	if err != nil {
		return err
	}
	defer body.Close()
	if err := l.header(blobName(desc.Digest), desc.Size); err != nil {
		return err
	}
	n, err := io.Copy(l.tar, body)
	if err != nil {
		return err
	}
	if n != desc.Size {
		return fmt.Errorf("layer %s has %d bytes, its manifest says %d", desc.Digest, n, desc.Size)
	}
	return nil
}

func (l *layout) header(name string, size int64) error {
	return l.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size})
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// bounded refuses to read answers beyond limit bytes: what the library keeps in memory must not be the registry's choice.
type bounded struct {
	next  http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = &boundedBody{res.Body, b.limit}
	return res, nil
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooLarge("the registry's answer is too long")
	}
	return n, err
}

// pullError keeps errors of the house, wherever they lie in the chain, and names the registry's own.
func pullError(ctx context.Context, reference string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if se, ok := errors.AsType[*sandbox.Error](err); ok {
		return se
	}
	remedy := "check the name, and that the registry can be reached from this host"
	if te, ok := errors.AsType[*transport.Error](err); ok && (te.StatusCode == http.StatusUnauthorized || te.StatusCode == http.StatusForbidden) {
		remedy = "the image must exist and be public; or upload an archive of it"
	}
	return &sandbox.Error{Code: sandbox.CodeRegistry, Message: "the image could not be fetched",
		Cause: reference + ": " + cut(strings.ToValidUTF8(err.Error(), "?")), Remedy: remedy, Err: err}
}

func cut(s string) string {
	const most = 512
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
