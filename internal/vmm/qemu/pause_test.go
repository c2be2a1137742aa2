package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/confine"
	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/vmm"
)

// peer plays the QEMU of a machine: this process is its process.
type peer struct {
	t      *testing.T
	events chan string
	asked  chan string // the commands stop and cont

	mu      sync.Mutex
	status  string
	noSpace bool
	// answer, when it returns something, is sent instead of the answer to a command; "hang up" ends the connection and
	// "nothing" is no answer.
	answer func(command string) string
}

// newPeer is a machine whose QEMU is played.
func newPeer(t *testing.T) (*peer, *Machine) {
	t.Helper()
	p := &peer{t: t, status: statusRunning, events: make(chan string, 8), asked: make(chan string, 1024)}
	socket := filepath.Join(t.TempDir(), SocketName)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.serve(conn) // one client at a time, as QEMU
		}
	})
	proc, err := confine.Adopt(self(t))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(proc, private{Socket: socket}, slog.New(slog.DiscardHandler))
	m.times = times{change: 300 * time.Millisecond, retry: 20 * time.Millisecond}
	m.supervise()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		listener.Close()
		served.Wait()
	})
	return p, m
}

// self is the identity of this process.
func self(t *testing.T) confine.Identity {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	boot, err := confine.BootID()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return confine.Identity{PID: os.Getpid(), StartTime: start, BootID: boot, UID: uint32(os.Getuid())}
}

func (p *peer) serve(conn net.Conn) {
	defer conn.Close()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for r := bufio.NewScanner(conn); r.Scan(); {
			lines <- r.Text()
		}
	}()
	fmt.Fprintln(conn, `{"QMP": {}}`)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return
			}
			if !p.handle(conn, line) {
				conn.Close()
				for range lines { // until its reader has ended
				}
				return
			}
		case e := <-p.events:
			fmt.Fprintln(conn, e)
		}
	}
}

// handle reports whether the connection goes on.
func (p *peer) handle(conn io.Writer, line string) bool {
	var request struct {
		Execute string
		ID      uint64
	}
	if err := json.Unmarshal([]byte(line), &request); err != nil {
		p.t.Errorf("request %q: %v", line, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answer != nil {
		switch own := p.answer(request.Execute); own {
		case "":
		case "hang up":
			return false
		case "nothing":
			return true
		default:
			fmt.Fprintln(conn, strings.ReplaceAll(own, "ID", fmt.Sprint(request.ID)))
			return true
		}
	}
	result := "{}"
	switch request.Execute {
	case "stop":
		p.asked <- "stop"
		if p.status == statusRunning {
			p.status = "paused"
		}
	case "cont":
		p.asked <- "cont"
		if p.status == "paused" || p.status == statusIOError {
			p.status = statusRunning
		}
	case "query-status":
		result = fmt.Sprintf(`{"status": %q}`, p.status)
	case "query-block":
		result = `[{"io-status": "failed"}]`
		if p.noSpace {
			result = `[{"io-status": "nospace"}]`
		}
	}
	fmt.Fprintf(conn, `{"return": %s, "id": %d}`+"\n", result, request.ID)
	return true
}

func (p *peer) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *peer) requireStatus(want string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status != want {
		p.t.Errorf("QEMU is %s, want %s", p.status, want)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	p, m := newPeer(t)
	for range 2 {
		for range 2 {
			if err := m.Pause(t.Context()); err != nil {
				t.Error(err)
			}
			p.requireStatus("paused")
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		p.requireStatus(statusRunning)
	}
}

// Whatever a VMM does instead of obeying, the call ends in time with an error for people, and when it obeys again the
// next call succeeds.
func TestVMMThatDoesNotObey(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"never":     "nothing",
		"garbage":   "\x00\xff{{{",
		"wrong id":  `{"return": {}, "id": 424242}`,
		"endless":   strings.Repeat("x", 80<<10),
		"refuses":   `{"error": {"class": "GenericError", "desc": "no"}, "id": ID}`,
		"hangs up":  "hang up",
		"says done": `{"return": {}, "id": ID}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, m := newPeer(t)
			p.set(func() {
				p.answer = func(command string) string {
					if command == "stop" || command == "cont" && p.status == "paused" {
						return answer
					}
					return ""
				}
			})
			began := time.Now()
			err := m.Pause(t.Context())
			if e := sandbox.AsError(err); e.Code != sandbox.CodeVMMFailed || e.Cause == "" || e.Remedy == "" || len(e.Cause) > 4<<10 {
				t.Errorf("got %#v", e)
			}
			if took := time.Since(began); took > 20*m.times.change {
				t.Errorf("it took %s", took)
			}
			t.Log(err)
			p.set(func() { p.answer = nil })
			if err := m.Pause(t.Context()); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			p.requireStatus("paused")
		})
	}
}

// A VMM that obeys after the call has given up: the next call finds out, whichever it is.
func TestVMMThatObeysLate(t *testing.T) {
	t.Parallel()
	p, m := newPeer(t)
	late := func(command string) string {
		if command == "stop" {
			p.status = "paused"
			return "nothing"
		}
		return ""
	}
	for name, next := range map[string]wish{"pause": wantPaused, "resume": wantRunning} {
		p.set(func() { p.answer, p.status = late, statusRunning })
		if err := m.Pause(t.Context()); sandbox.CodeOf(err) != sandbox.CodeVMMFailed {
			t.Errorf("%s: %v", name, err)
		}
		p.set(func() { p.answer = nil })
		if err := m.turn(t.Context(), next); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p.requireStatus(map[wish]string{wantPaused: "paused", wantRunning: statusRunning}[next])
	}
}

// A connection that breaks in the middle is no failure.
func TestPauseOverALostConnection(t *testing.T) {
	t.Parallel()
	p, m := newPeer(t)
	m.times.change = time.Minute
	broken := 0
	p.set(func() {
		p.answer = func(command string) string {
			if command == "stop" && broken < 3 {
				broken++
				return "hang up"
			}
			return ""
		}
	})
	if err := m.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	p.requireStatus("paused")
}

func TestPauseOfAnEndedGuest(t *testing.T) {
	t.Parallel()
	p, m := newPeer(t)
	p.set(func() {
		p.answer = func(command string) string {
			if command == "stop" {
				p.status = "shutdown"
			}
			return ""
		}
	})
	if err := m.Pause(t.Context()); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("got %v", err)
	}
}

// A disk that fails is tried again while the guest is to run, and never while it is to stand still or nobody has said
// what it is to do.
func TestRetriesOfADiskObeyTheWish(t *testing.T) {
	t.Parallel()
	p, m := newPeer(t)
	failed := `{"event": "BLOCK_IO_ERROR", "data": {"action": "stop", "nospace": false}}`
	fail := func() {
		p.set(func() { p.status = statusIOError })
		p.events <- failed
	}
	quiet := func(what string) {
		t.Helper()
		select {
		case c := <-p.asked:
			t.Errorf("%s: the monitor has said %s", what, c)
		case <-time.After(10 * m.times.retry):
		}
		p.requireStatus(statusIOError)
	}
	fail()
	quiet("just adopted")
	if err := m.Pause(t.Context()); err != nil { // it stands still already
		t.Error(err)
	}
	<-p.asked
	quiet("paused")
	if err := m.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	<-p.asked
	for range 3 {
		fail()
		if c := <-p.asked; c != "cont" {
			t.Errorf("the monitor has said %s", c)
		}
	}
}

// A disk for which the host has no space is not the monitor's to try; it tells, by the event and when it comes later.
func TestStallsAreTold(t *testing.T) {
	t.Parallel()
	p, m := newPeer(t)
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.asked
	p.set(func() { p.status, p.noSpace = statusIOError, true })
	p.events <- `{"event": "BLOCK_IO_ERROR", "data": {"action": "stop", "nospace": true}}`
	for range 3 { // the monitor looks again and again
		<-m.Stalled()
	}
	select {
	case c := <-p.asked:
		t.Errorf("the monitor has said %s", c)
	default:
	}

	later, err := confine.Adopt(m.proc.Identity())
	if err != nil {
		t.Fatal(err)
	}
	socket := m.private
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	again := newMachine(later, socket, slog.New(slog.DiscardHandler))
	again.supervise()
	defer again.Close()
	<-again.Stalled()
	p.set(func() { p.noSpace = false })
	if err := again.Resume(t.Context()); err != nil {
		t.Error(err)
	}
	p.requireStatus(statusRunning)
}
