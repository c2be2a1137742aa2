package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/ociimage"
	"github.com/space-sandbox/space/internal/pool"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	mib = 1 << 20
	// maxArchive bounds an uploaded archive: the layers and a little around them.
	maxArchive = 8<<30 + 64*mib
	// importReserve is what an import leaves free in the pool for the sandboxes that run.
	importReserve = 256 * mib
	// importStage is the owner of the import's stages.
	importStage = "import"
	// workerSlot is the first of a worker's ids in the installation's range; the one before it is the probe's.
	workerSlot = 1
)

// sweepImports removes what a node that was killed while it imported has left.
func (n *Node) sweepImports(ctx context.Context) error {
	if err := n.removeGroup(ctx); err != nil {
		return err
	}
	if n.deps.Worker != nil { // without control groups the workers are known by their uid alone
		if err := confine.EndUID(ctx, n.workerID()); err != nil {
			return fmt.Errorf("end import workers: %w", err)
		}
	}
	return n.deps.Pool.SweepStaging(importStage)
}

// workerID is the uid outside that a worker's root has.
func (n *Node) workerID() uint32 { return n.deps.Dir.Installation.UIDBase + workerSlot }

// lockTemplates waits for the right to change templates.
func (n *Node) lockTemplates(ctx context.Context) (func(), error) {
	select {
	case n.templates <- struct{}{}:
		return func() { <-n.templates }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another import: %w", ctx.Err())
	}
}

// ImportTemplate implements NodeService.
func (s service) ImportTemplate(ctx context.Context, stream *connect.ClientStream[nodev1.ImportTemplateRequest]) (*connect.Response[nodev1.ImportTemplateResponse], error) {
	if !stream.Receive() {
		return nil, errors.Join(sandbox.Errorf(sandbox.CodeInvalidArgument, "an import begins with its start"), stream.Err())
	}
	name := stream.Msg().GetStart().GetName()
	if parsed, err := sandbox.ParseTemplateName(name); err != nil || parsed != name {
		return nil, sandbox.Errorf(sandbox.CodeInvalidArgument, "node refused the name of a template")
	}
	if s.n.deps.Worker == nil {
		return nil, sandbox.Errorf(sandbox.CodeHostSetup, "this node cannot import images")
	}
	unlock, err := s.n.lockTemplates(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m, stages, err := s.n.importArchive(ctx, name, func(f *os.File) error { return s.n.receive(ctx, stream, f) })
	if err != nil {
		return nil, err
	}
	s.n.deps.Logger.Info("template imported", "template", name, "digest", m.Digest, "size_bytes", m.SizeBytes)
	return connect.NewResponse(&nodev1.ImportTemplateResponse{Template: templateProto(m), Stages: stagesProto(stages)}), nil
}

// receive writes the stream's archive into f without looking at it.
func (n *Node) receive(ctx context.Context, stream *connect.ClientStream[nodev1.ImportTemplateRequest], f *os.File) error {
	var size, checked int64
	for stream.Receive() {
		data := stream.Msg().GetData()
		if size += int64(len(data)); size > maxArchive {
			return &sandbox.Error{Code: sandbox.CodeImageInvalid, Message: "the archive is too large", Cause: fmt.Sprintf("it has more than %d bytes", int64(maxArchive))}
		}
		if size-checked > 64*mib {
			if err := n.checkSpace(ctx); err != nil {
				return err
			}
			checked = size
		}
		if _, err := f.Write(data); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return poolFull(0, importReserve)
		} else if err != nil {
			return fmt.Errorf("receive an archive: %w", err)
		}
	}
	return stream.Err()
}

// checkSpace refuses to go on when the sandboxes that run would soon have no space for their disks.
func (n *Node) checkSpace(ctx context.Context) error {
	usage, err := n.deps.Usage(ctx)
	if err != nil {
		return fmt.Errorf("pool usage: %w", err)
	}
	// Above the reserve, so that no import makes node pause the machines.
	if keep := max(importReserve, enough(n.reserve.bytes(usage.TotalBytes))); usage.FreeBytes < keep {
		return poolFull(usage.FreeBytes, keep)
	}
	return nil
}

func poolFull(free, keep uint64) error {
	return &sandbox.Error{Code: sandbox.CodePoolFull, Message: "the host's pool is too full for an import",
		Cause:  fmt.Sprintf("%d MiB are free, %d MiB are kept for sandboxes", free/mib, keep/mib),
		Remedy: "delete sandboxes or templates, or give the pool more space"}
}

// importArchive makes a template of what receive writes.
func (n *Node) importArchive(ctx context.Context, name string, receive func(*os.File) error) (m pool.Manifest, _ []stage, err error) {
	scratch, err := n.deps.Pool.NewStage(importStage)
	if err != nil {
		return m, nil, err
	}
	defer func() { err = errors.Join(err, scratch.Remove()) }()
	archive, err := scratch.CreateArchive()
	if err != nil {
		return m, nil, err
	}
	defer archive.Close()
	t := &timer{at: time.Now()}
	if err := receive(archive); err != nil {
		return m, nil, err
	}
	t.stage("receive")
	group, err := n.openGroup(ctx)
	if err != nil {
		return m, nil, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		err = errors.Join(err, n.removeGroup(end))
	}()
	job := WorkerJob{Mode: ociimage.ModeScan, Archive: archive, UIDs: []uint32{0}, GIDs: []uint32{0}, FirstID: n.workerID(), Group: group}
	owners, err := n.work(ctx, job)
	if err != nil {
		return m, nil, err
	}
	if err := checkOwners(owners.UIDs, owners.GIDs); err != nil {
		return m, nil, err
	}
	t.stage("scan")
	job.Mode, job.UIDs, job.GIDs = ociimage.ModeBuild, owners.UIDs, owners.GIDs
	m, st, err := n.buildImage(ctx, scratch, job)
	if err != nil {
		return m, nil, err
	}
	t.stage("build")
	m.Names = []string{name}
	if err := n.installNamed(ctx, st, m); err != nil {
		return m, nil, err
	}
	t.stage("install")
	return m, t.stages, nil
}

// buildImage has the worker unpack the archive and make the image, and measures what it made.
func (n *Node) buildImage(ctx context.Context, scratch *pool.Stage, job WorkerJob) (m pool.Manifest, _ *pool.Stage, err error) {
	if job.Tree, err = scratch.MakeTree(job.FirstID, job.FirstID); err != nil {
		return m, nil, err
	}
	defer job.Tree.Close()
	made, err := n.deps.Pool.NewStage(importStage)
	if err != nil {
		return m, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, made.Remove())
		}
	}()
	if job.Image, err = made.CreateRootfs(); err != nil {
		return m, nil, err
	}
	defer job.Image.Close()
	// mke2fs opens it again by its descriptor, which the file's permissions must allow.
	if err := job.Image.Chown(int(job.FirstID), int(job.FirstID)); err != nil {
		return m, nil, fmt.Errorf("image: %w", err)
	}
	res, err := n.work(ctx, job)
	if err != nil {
		return m, nil, err
	}
	if err := errors.Join(job.Image.Chown(os.Getuid(), os.Getgid()), job.Image.Chmod(0o600)); err != nil {
		return m, nil, fmt.Errorf("image: %w", err)
	}
	m, err = describe(ctx, job.Image, res.Settings)
	return m, made, err
}

// describe is the manifest of an image; the settings are the worker's word and are checked like any other.
func describe(ctx context.Context, image *os.File, settings *ociimage.Settings) (pool.Manifest, error) {
	info, err := image.Stat()
	if err != nil {
		return pool.Manifest{}, fmt.Errorf("image: %w", err)
	}
	if settings == nil || info.Size() < mib || info.Size()%mib != 0 || info.Size()/mib > sandbox.MaxDiskMiB {
		return pool.Manifest{}, fmt.Errorf("the import worker made an image of %d bytes", info.Size())
	}
	digest, err := pool.Digest(ctx, image)
	if err != nil {
		return pool.Manifest{}, err
	}
	m := pool.Manifest{Digest: digest, SizeBytes: info.Size(), MinDiskMiB: max(int(info.Size()/mib), sandbox.MinDiskMiB), Env: settings.Env,
		User: settings.User, Workdir: settings.Workdir, Entrypoint: settings.Entrypoint, CreatedAt: time.Now().UTC()}
	if err := m.Validate(); err != nil {
		return pool.Manifest{}, &sandbox.Error{Code: sandbox.CodeImageInvalid, Message: "the image was refused", Cause: printable(err.Error()), Err: err}
	}
	return m, nil
}

// installNamed installs a template and takes its name from the one that had it.
func (n *Node) installNamed(ctx context.Context, st *pool.Stage, m pool.Manifest) error {
	before, err := n.deps.Pool.ListTemplates()
	if err != nil {
		return errors.Join(err, st.Remove())
	}
	name := m.Names[0]
	for _, old := range before {
		if old.Digest == m.Digest { // the same image again: it keeps its other names
			m.Names = append(m.Names, without(old.Names, name)...)
		}
	}
	if err := n.deps.Pool.InstallTemplate(ctx, st, m); err != nil {
		return err
	}
	for _, old := range before {
		if old.Digest == m.Digest || !slices.Contains(old.Names, name) {
			continue
		}
		if err := n.deps.Pool.SetNames(old.Digest, without(old.Names, name)); err != nil {
			return err
		}
	}
	return nil
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == name })
}

// work runs one worker, and ends it when the pool gets too full.
func (n *Node) work(ctx context.Context, job WorkerJob) (ociimage.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			if err := n.checkSpace(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	res, err := n.deps.Worker(ctx, job)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-watch
	return res, err
}

// checkOwners checks what a worker claims to have found: node maps these ids to the worker's own, and no others.
func checkOwners(lists ...[]uint32) error {
	for _, ids := range lists {
		if len(ids) == 0 || ids[0] != 0 || len(ids) > reservedUIDs-workerSlot || ids[len(ids)-1] > 1<<32-2 {
			return errors.New("the import worker named owners that cannot be")
		}
		for i := 1; i < len(ids); i++ {
			if ids[i] <= ids[i-1] {
				return errors.New("the import worker named owners that cannot be")
			}
		}
	}
	return nil
}

// DeleteTemplate implements NodeService.
func (s service) DeleteTemplate(ctx context.Context, req *connect.Request[nodev1.DeleteTemplateRequest]) (*connect.Response[nodev1.DeleteTemplateResponse], error) {
	if !digestPattern.MatchString(req.Msg.Digest) {
		return nil, sandbox.Errorf(sandbox.CodeInvalidArgument, "node refused a digest")
	}
	unlock, err := s.n.lockTemplates(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.n.deleteTemplate(req.Msg.Digest, req.Msg.Name); err != nil {
		return nil, err
	}
	return connect.NewResponse(&nodev1.DeleteTemplateResponse{}), nil
}

func (n *Node) deleteTemplate(digest, name string) error {
	if name == "" {
		return n.deps.Pool.RemoveTemplate(digest)
	}
	all, err := n.deps.Pool.ListTemplates()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(m pool.Manifest) bool { return m.Digest == digest })
	if i < 0 {
		return nil
	}
	return n.deps.Pool.SetNames(digest, without(all[i].Names, name))
}

// timer measures stages.
type timer struct {
	at     time.Time
	stages []stage
}

func (t *timer) stage(name string) {
	now := time.Now()
	t.stages = append(t.stages, stage{name, now.Sub(t.at)})
	t.at = now
}

func stagesProto(stages []stage) []*nodev1.Stage {
	var out []*nodev1.Stage
	for _, st := range stages {
		out = append(out, &nodev1.Stage{Name: st.name, Ms: float64(st.took.Microseconds()) / 1000})
	}
	return out
}

func templateProto(t pool.Manifest) *nodev1.Template {
	return &nodev1.Template{Digest: t.Digest, Names: t.Names, SizeBytes: uint64(t.SizeBytes), Env: t.Env, User: t.User,
		Workdir: t.Workdir, Entrypoint: t.Entrypoint, CreatedAt: timestamppb.New(t.CreatedAt), MinDiskMib: uint32(t.MinDiskMiB)}
}
