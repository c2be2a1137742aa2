package qemu

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu/qmp"
)

// Pauses between attempts to reach QEMU: short while it starts, long for one that has stopped answering.
const (
	firstPause = time.Millisecond
	startPause = 10 * time.Millisecond
	maxPause   = 5 * time.Second
)

// consoleRead is how much of the console is asked for at once: an answer in base64 stays within a line.
const consoleRead = 32 << 10

// awaitRunning returns when the vCPUs run.
func (m *Machine) awaitRunning(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m.work.Go(func() {
		select {
		case <-m.proc.Done():
			cancel(errEnded)
		case <-ctx.Done():
		}
	})
	err := m.connect(ctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errEnded) {
		return ctx.Err()
	}
	// A broken connection is mostly the end of QEMU, whose status says more; it follows within moments.
	select {
	case <-m.proc.Done():
		status, waitErr := m.proc.Wait(m.ctx)
		return errors.Join(fmt.Errorf("%w: %s", errEnded, status), waitErr)
	case <-time.After(500 * time.Millisecond):
		return err
	}
}

var errEnded = errors.New("QEMU ended while starting")

func (m *Machine) connect(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, startPause) {
		conn, err := m.dial(ctx)
		if err == nil {
			m.setConn(conn)
			return m.checkRunning(ctx, conn)
		}
		if !notListening(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// notListening: QEMU has not come to its control socket yet, or has ended on the way.
func notListening(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

func (m *Machine) checkRunning(ctx context.Context, conn *qmp.Conn) error {
	status, err := queryStatus(ctx, conn)
	if err != nil {
		return err
	}
	// A guest may have ended already; then it was a machine, and the monitor says how it ended.
	if status != statusRunning && !guestEnded(status) {
		return fmt.Errorf("QEMU is in the state %.64q", status)
	}
	return nil
}

// The states of query-status that matter here.
const (
	statusRunning = "running"
	statusIOError = "io-error"
)

// guestEnded: QEMU has stopped because the guest powered off, reset, panicked or broke its processor.
func guestEnded(status string) bool {
	return status == "shutdown" || status == "guest-panicked" || status == "internal-error"
}

func queryStatus(ctx context.Context, conn *qmp.Conn) (string, error) {
	var result struct{ Status string }
	err := conn.Execute(ctx, "query-status", nil, &result)
	return result.Status, err
}

// dial connects to the control socket and makes sure that the peer is the machine's process.
func (m *Machine) dial(ctx context.Context) (*qmp.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", m.private.Socket)
	if err != nil {
		return nil, err
	}
	if err := m.checkPeer(conn.(*net.UnixConn)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return qmp.Open(ctx, conn, m.events)
}

func (m *Machine) checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) { cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if inner != nil {
		return inner
	}
	if id := m.proc.Identity(); int(cred.Pid) != id.PID || cred.Uid != id.UID {
		return fmt.Errorf("the control socket belongs to pid %d of uid %d, not to the machine", cred.Pid, cred.Uid)
	}
	return nil
}

func (m *Machine) setConn(conn *qmp.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn = conn
	if conn != nil {
		close(m.dialed)
		m.dialed = make(chan struct{})
	}
}

// monitor keeps a connection to QEMU and acts on what it tells, until the machine ends or is closed.
func (m *Machine) monitor() {
	m.mu.Lock()
	conn := m.conn
	m.mu.Unlock()
	for pause := startPause; ; pause = min(2*pause, maxPause) {
		if conn == nil {
			var err error
			if conn, err = m.dial(m.ctx); err != nil && m.ctx.Err() == nil {
				m.log.Debug("QEMU does not answer", "error", err)
			}
		}
		if conn != nil {
			m.setConn(conn)
			m.serve(conn)
			m.setConn(nil)
			conn.Close()
			conn = nil
		}
		select {
		case <-m.proc.Done():
			return
		case <-m.ctx.Done():
			return
		case <-m.redial:
		case <-time.After(pause):
		}
	}
}

// serve looks at QEMU's state once, for something may have happened while nobody listened, and then at its events.
func (m *Machine) serve(conn *qmp.Conn) {
	if status, err := queryStatus(m.ctx, conn); err == nil {
		if guestEnded(status) {
			m.guestEnded(conn, "the guest ended itself: "+status)
		}
		if m.stalled = status == statusIOError; m.stalled {
			if m.mayLog() {
				m.log.Error("the guest is stopped because its disk cannot be written or read")
			}
			m.tellStall(outOfSpace(m.ctx, conn))
		}
	}
	retry := time.NewTicker(m.times.retry)
	defer retry.Stop()
	for {
		select {
		case e := <-m.events:
			m.handle(conn, e)
		case <-retry.C:
			m.retryDisk(conn)
		case <-conn.Done():
			return
		case <-m.proc.Done():
			return
		case <-m.ctx.Done():
			return
		}
	}
}

func (m *Machine) handle(conn *qmp.Conn, e qmp.Event) {
	switch e.Name {
	case "SHUTDOWN":
		var data struct{ Reason string }
		_ = json.Unmarshal(e.Data, &data) // only for people
		m.guestEnded(conn, fmt.Sprintf("the guest ended itself: %.64s", data.Reason))
	case "GUEST_PANICKED":
		m.guestEnded(conn, "the guest's kernel panicked")
	case "BLOCK_IO_ERROR":
		m.stalled = true
		var data struct{ NoSpace bool }
		m.tellStall(json.Unmarshal(e.Data, &data) == nil && data.NoSpace)
		if m.mayLog() {
			m.log.Error("the host failed to write or read the machine's disk", "event", fmt.Sprintf("%.512s", vmm.ConsoleText(e.Data)))
		}
	case "STOP":
		if m.mayLog() {
			m.log.Info("the guest has been stopped")
		}
	}
}

// maxEventLines bounds what the events of one machine write into the log: a VMM that was taken over can make up any
// number of them.
const maxEventLines = 64

// mayLog counts a line about an event. Only the monitor calls it.
func (m *Machine) mayLog() bool {
	if m.eventLines++; m.eventLines == maxEventLines {
		m.log.Warn("further events of this machine are not logged")
	}
	return m.eventLines < maxEventLines
}

// guestEnded keeps the end of the console and ends QEMU, which has nothing left to run.
func (m *Machine) guestEnded(conn *qmp.Conn, how string) {
	if err := m.readConsole(m.ctx, conn); err != nil {
		m.log.Debug("the last console lines are lost", "error", err)
	}
	m.mu.Lock()
	if !m.killed {
		m.ended = how
	}
	m.mu.Unlock()
	if err := m.proc.Kill(m.ctx); err != nil && m.ctx.Err() == nil {
		m.log.Error("QEMU does not end after its guest", "error", err)
	}
}

// Console returns the newest part of the console.
func (m *Machine) Console(ctx context.Context) (string, error) {
	m.mu.Lock()
	conn := m.conn
	m.mu.Unlock()
	if conn != nil {
		select {
		case <-m.proc.Done():
		default:
			if err := m.readConsole(ctx, conn); err != nil {
				return "", fmt.Errorf("qemu: console: %w", err)
			}
		}
	}
	return m.keptConsole(), nil
}

func (m *Machine) keptConsole() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return vmm.ConsoleText(m.tail)
}

// readConsole takes what is in QEMU's ring and keeps the newest part. A guest may write faster than we read, so the
// number of reads is bounded: it is enough for a whole ring.
func (m *Machine) readConsole(ctx context.Context, conn *qmp.Conn) error {
	for range consoleBytes/consoleRead + 1 {
		var text string
		args := map[string]any{"device": "console", "size": consoleRead, "format": "base64"}
		if err := conn.Execute(ctx, "ringbuf-read", args, &text); err != nil {
			return err
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.tail = append(m.tail, data...)
		m.tail = append([]byte(nil), m.tail[max(0, len(m.tail)-2*vmm.MaxConsole):]...)
		m.mu.Unlock()
		if len(data) < consoleRead {
			return nil
		}
	}
	return nil
}
