package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
	"github.com/space-sandbox/space/internal/vmm/qemu/qmp"
)

// wish is what the vCPUs are to do.
type wish int

const (
	wantUnknown wish = iota // of a machine that was adopted: nobody has said it yet
	wantRunning
	wantPaused
)

// times are those that tests shorten.
type times struct {
	change time.Duration // bounds a Pause or Resume
	retry  time.Duration // between attempts of a disk that has failed
}

// Pause stops the vCPUs.
func (m *Machine) Pause(ctx context.Context) error { return m.turn(ctx, wantPaused) }

// Resume lets them go on.
func (m *Machine) Resume(ctx context.Context) error { return m.turn(ctx, wantRunning) }

// Stalled tells of a disk for which the host had no space.
func (m *Machine) Stalled() <-chan struct{} { return m.stalls }

// turn makes the vCPUs do what is wanted, over lost connections, until it is seen or the time is up.
func (m *Machine) turn(ctx context.Context, want wish) error {
	ctx, cancel := context.WithTimeoutCause(ctx, m.times.change, fmt.Errorf("QEMU did not do it within %s", m.times.change))
	defer cancel()
	select {
	case m.change <- struct{}{}:
		defer func() { <-m.change }()
	case <-ctx.Done():
		return changeError(want, context.Cause(ctx))
	}
	m.wanted = want
	for pause := startPause; ; pause = min(2*pause, maxTurnPause) {
		err := m.tryTurn(ctx, want)
		if err == nil || errors.Is(err, vmm.ErrGone) {
			return err
		}
		if _, refused := errors.AsType[*qmp.Error](err); refused {
			return changeError(want, err)
		}
		select {
		case <-time.After(pause):
		case <-m.proc.Done():
			return fmt.Errorf("qemu: %w", vmm.ErrGone)
		case <-m.ctx.Done():
			return changeError(want, err)
		case <-ctx.Done():
			return changeError(want, errors.Join(context.Cause(ctx), err))
		}
	}
}

// maxTurnPause is the longest pause between attempts over connections that break.
const maxTurnPause = 500 * time.Millisecond

func (m *Machine) tryTurn(ctx context.Context, want wish) error {
	conn, err := m.await(ctx)
	if err != nil {
		return err
	}
	command := "stop"
	if want == wantRunning {
		command = "cont"
		select {
		case <-m.stalls: // of before
		default:
		}
	}
	// The answer comes when the disk has written what was under way, which may take longer than other answers.
	if err := conn.ExecuteWithin(ctx, m.times.change, command, nil, nil); err != nil {
		if _, refused := errors.AsType[*qmp.Error](err); !refused {
			return err
		}
		if status, statusErr := queryStatus(ctx, conn); statusErr == nil && guestEnded(status) {
			return fmt.Errorf("qemu: the guest has ended itself (%s): %w", status, vmm.ErrGone)
		}
		return err
	}
	status, err := queryStatus(ctx, conn)
	if err != nil {
		return err
	}
	switch {
	case guestEnded(status):
		return fmt.Errorf("qemu: the guest has ended itself (%s): %w", status, vmm.ErrGone)
	case status == statusIOError:
		return nil // it stands still; when it was to run, it has failed again already, and Stalled or the monitor go on
	case (status == statusRunning) != (want == wantRunning):
		return fmt.Errorf("QEMU is in the state %.64q after %s", status, command)
	}
	return nil
}

// await returns the monitor's connection, and wakes the monitor when it has none: QEMU talks to one client at a time.
func (m *Machine) await(ctx context.Context) (*qmp.Conn, error) {
	for {
		m.mu.Lock()
		conn, dialed := m.conn, m.dialed
		m.mu.Unlock()
		if conn != nil {
			select {
			case <-conn.Done(): // the monitor has not noticed yet
			default:
				return conn, nil
			}
		}
		select {
		case m.redial <- struct{}{}:
		default:
		}
		select {
		case <-dialed:
		case <-m.proc.Done():
			return nil, fmt.Errorf("qemu: %w", vmm.ErrGone)
		case <-m.ctx.Done():
			return nil, errors.New("the handle of the machine is closed")
		case <-ctx.Done():
			return nil, errors.New("QEMU's control socket cannot be reached")
		}
	}
}

// changeError is the form in which a failed Pause or Resume reaches people.
func changeError(want wish, err error) error {
	e := &sandbox.Error{Code: sandbox.CodeVMMFailed, Message: "the virtual machine could not be resumed", Cause: err.Error(),
		Remedy: "try again; deleting the sandbox always works", Err: err}
	if want == wantPaused {
		e.Message = "the virtual machine could not be paused"
	}
	if errors.Is(err, context.Canceled) {
		e.Code, e.Remedy = sandbox.CodeCanceled, ""
	}
	return e
}

// tellStall notes that the host had no space for the guest's disk.
func (m *Machine) tellStall(noSpace bool) {
	if !noSpace {
		return
	}
	select {
	case m.stalls <- struct{}{}:
	default:
	}
}

// outOfSpace asks whether a disk failed for lack of space; when QEMU does not say so, it did not.
func outOfSpace(ctx context.Context, conn *qmp.Conn) bool {
	var disks []struct {
		Status string `json:"io-status"`
	}
	if err := conn.Execute(ctx, "query-block", nil, &disks); err != nil {
		return false
	}
	for _, d := range disks {
		if d.Status == "nospace" {
			return true
		}
	}
	return false
}

// retryPause is how long a guest whose disk has failed stays stopped before it is tried again.
const retryPause = 5 * time.Second

// retryDisk lets a guest that is to run, but stands still because of its disk, go on: what failed is done again. When the
// host has no space for it, that is the business of whoever listens to Stalled.
func (m *Machine) retryDisk(conn *qmp.Conn) {
	if !m.stalled {
		return
	}
	select {
	case m.change <- struct{}{}:
		defer func() { <-m.change }()
	default:
		return // somebody decides just now
	}
	if m.wanted != wantRunning {
		return
	}
	status, err := queryStatus(m.ctx, conn)
	switch {
	case err != nil || status != statusIOError:
	case outOfSpace(m.ctx, conn):
		m.tellStall(true)
		return
	default:
		err = conn.Execute(m.ctx, "cont", nil, nil)
	}
	if err != nil {
		m.log.Debug("the stopped guest cannot be tried", "error", err)
		return
	}
	m.stalled = false // an event tells if it failed again
}
