package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"

	"connectrpc.com/connect"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	"github.com/space-sandbox/space/internal/guestnet"
)

// lie takes the agent's address and answers in its place, with lies only.
func lie() error {
	l, err := takeAddress()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentServiceHandler(&liar{}))
	mux.HandleFunc("/files", liedFile)
	mux.HandleFunc("/files/stat", endlessHeaders)
	mux.HandleFunc("/files/list", endlessBody)
	mux.HandleFunc("/files/archive", endlessBody)
	mux.HandleFunc("/files/mkdir", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/files/move", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+guestnet.HostAddr().String()+"/", http.StatusFound)
	})
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: mux, Protocols: p, ReadHeaderTimeout: 0}
	return srv.Serve(l)
}

// takeAddress moves the link into a network of its own, where nobody listens on the agent's port yet.
func takeAddress() (net.Listener, error) {
	runtime.LockOSThread()
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	old, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer old.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare: %w", err)
	}
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer own.Close()
	if err := unix.Setns(int(old.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetNsFd(link, int(own.Fd())); err != nil {
		return nil, fmt.Errorf("move the link: %w", err)
	}
	if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	if link, err = netlink.LinkByName("eth0"); err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(guestnet.HostMAC)
	if err != nil {
		return nil, err
	}
	mask := net.CIDRMask(guestnet.PrefixLen, 32)
	err = errors.Join(
		netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: guestnet.GuestAddr().AsSlice(), Mask: mask}}),
		netlink.LinkSetUp(link),
		netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: guestnet.HostAddr().AsSlice(), HardwareAddr: mac}))
	if err != nil {
		return nil, err
	}
	return net.Listen("tcp4", guestnet.AgentAddr().String())
}

// liar speaks the agent's protocol.
type liar struct {
	agentv1connect.UnimplementedAgentServiceHandler
}

// CreateProcess is believed, so that there is more to lie about.
func (*liar) CreateProcess(_ context.Context, req *connect.Request[agentv1.CreateProcessRequest]) (*connect.Response[agentv1.CreateProcessResponse], error) {
	return connect.NewResponse(&agentv1.CreateProcessResponse{Process: &agentv1.Process{ProcessId: req.Msg.ProcessId,
		State: agentv1.ProcessState_PROCESS_STATE_CREATED}}), nil
}

// StartProcess says that what never ran has run, in another century.
func (*liar) StartProcess(_ context.Context, req *connect.Request[agentv1.StartProcessRequest]) (*connect.Response[agentv1.StartProcessResponse], error) {
	return connect.NewResponse(&agentv1.StartProcessResponse{Process: &agentv1.Process{ProcessId: req.Msg.ProcessId, Pid: 1,
		State: agentv1.ProcessState_PROCESS_STATE_EXITED, ExitCode: 7, StdoutBytes: 1 << 61,
		StartedAt: &timestamppb.Timestamp{Seconds: 1}, EndedAt: &timestamppb.Timestamp{Seconds: 250_000_000_000}}}), nil
}

// GetProcess tells of another process.
func (*liar) GetProcess(context.Context, *connect.Request[agentv1.GetProcessRequest]) (*connect.Response[agentv1.GetProcessResponse], error) {
	return connect.NewResponse(&agentv1.GetProcessResponse{Process: &agentv1.Process{ProcessId: "proc_aaaaaaaaaaaaaaaaaaaa", Pid: -1,
		State: agentv1.ProcessState_PROCESS_STATE_EXITED, ExitCode: 1 << 30}}), nil
}

// AckProcesses never answers.
func (*liar) AckProcesses(ctx context.Context, _ *connect.Request[agentv1.AckProcessesRequest]) (*connect.Response[agentv1.AckProcessesResponse], error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Attach sends output without end.
func (*liar) Attach(ctx context.Context, req *connect.Request[agentv1.AttachRequest], s *connect.ServerStream[agentv1.AttachResponse]) error {
	err := s.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: &agentv1.Process{ProcessId: req.Msg.ProcessId,
		State: agentv1.ProcessState_PROCESS_STATE_RUNNING, Pid: 1, StdoutBytes: 1 << 61}}})
	for offset := uint64(0); err == nil && len(req.Msg.Positions) > 0; offset += 32 << 10 {
		err = s.Send(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{Data: &agentv1.AttachResponse_Data{
			Stream: req.Msg.Positions[0].Stream, Offset: req.Msg.Positions[0].Offset + offset, Data: make([]byte, 32<<10)}}})
	}
	return err
}

// WatchProcesses tells of nothing but what was invented.
func (*liar) WatchProcesses(ctx context.Context, _ *connect.Request[agentv1.WatchProcessesRequest], s *connect.ServerStream[agentv1.WatchProcessesResponse]) error {
	for n := 0; ctx.Err() == nil; n++ {
		id := "proc_" + strings.Repeat(string(rune('a'+n%26)), 20)
		err := s.Send(&agentv1.WatchProcessesResponse{Event: &agentv1.WatchProcessesResponse_Process{Process: &agentv1.Process{
			ProcessId: id, State: agentv1.ProcessState_PROCESS_STATE_EXITED, Pid: 1, ExitCode: int32(n % 256)}}})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// liedFile announces more bytes than it sends, and stores nothing.
func liedFile(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write([]byte("a few bytes"))
		return
	}
	_, _ = w.Write([]byte(`{"path":"/etc/passwd","size_bytes":-1,"sha256":"none"}`))
}

func endlessHeaders(w http.ResponseWriter, _ *http.Request) {
	for i := range 1000 {
		w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("b", 1000))
	}
}

func endlessBody(w http.ResponseWriter, r *http.Request) {
	for block := []byte(strings.Repeat(" ", 64<<10)); r.Context().Err() == nil; {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}
