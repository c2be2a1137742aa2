// Package agent is the guest side of SPACE: it serves processes and files of one machine to the gateway. In a real
// guest it runs as PID 1 with the parts of package machine plugged in; under the fake driver it is an ordinary
// unprivileged process on the host. All it is asked comes from the gateway; all it answers is treated as hostile
// there, so nothing here is a boundary of trust except the token.
package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/api/proto/agent/v1/agentv1connect"
	"github.com/space-sandbox/space/internal/rpc"
)

// Config is what a Server is made of. Token, Machine and Logger are required.
type Config struct {
	// Token opens every route: `Authorization: Bearer <Token>`. At least 16 bytes.
	Token string
	// Version is told by Hello.
	Version string
	// Stages are the boot timings told by Hello.
	Stages []Stage
	// Machine is what only a real guest may do.
	Machine Machine
	// Reaper starts processes and collects their exit statuses; nil means ChildReaper, which collects only our own.
	// PID 1 needs one that collects orphans too.
	Reaper Reaper
	// Etc is the directory in which passwd and group are looked up at each use; "" is /etc. The fake driver gives
	// its own, in which the users of a template stand for the one user there is.
	Etc string
	// Only, when not nil, is the one user that processes and files may act as, even if this process is privileged:
	// the fake driver's, inside a test.
	Only *Only
	// Limits bounds what the server keeps; zero fields get their defaults.
	Limits Limits
	Logger *slog.Logger
}

// Only is the one user of a fake guest.
type Only struct{ UID, GID uint32 }

// Stage is one part of the boot.
type Stage struct {
	Name string
	Took time.Duration
}

// Limits bounds memory and time. The zero value of a field means its default.
type Limits struct {
	SpoolPerStream int64         // bytes kept of one output stream; 16 MiB
	SpoolTotal     int64         // bytes kept of all streams together; 1/8 of the machine's memory
	Processes      int           // entries in the table of processes; 4096
	Streams        int           // open Attach and Watch streams; 512
	ReaderPatience time.Duration // how long a process is held back for a reader that does not read; 30 s
	DrainTime      time.Duration // how long output is still read after a session's first process has ended; 1 s
}

// Machine is what the agent changes about the machine it runs on. Safe for concurrent use.
type Machine interface {
	SetHostname(name string) error
	// Now is the wall clock.
	Now() time.Time
	// SetClock steps the wall clock.
	SetClock(now time.Time) error
	// AdjustClock moves the wall clock by a measured difference, without a step when that is small.
	AdjustClock(by time.Duration) error
	// AddEntropy credits 32 to 512 bytes to the kernel's pool.
	AddEntropy(seed []byte) error
	// Shutdown ends user processes, syncs and powers off. It is called once, in its own goroutine, after the
	// answer to the Shutdown call has been written.
	Shutdown()
	// UserGroup returns a descriptor of the cgroup v2 directory in which user processes start, or -1 for none. It
	// stays the machine's.
	UserGroup() int
}

// Server serves one machine. Safe for concurrent use.
type Server struct {
	cfg       Config
	bootID    string
	table     *table
	streams   chan struct{} // a place for each Attach or Watch stream
	transfers chan struct{} // a place for each file on its way
	watches   chan struct{} // a place for each directory that is watched
	commit    sync.Mutex    // held between the check of if_match and the rename
	handler   http.Handler
	ctx       context.Context // ends with Close
	stop      context.CancelFunc

	powerOff     atomic.Bool // Shutdown has been asked for
	powerOffOnce sync.Once
}

const minTokenLength = 16

// New checks the configuration and makes a Server; it starts nothing. End it with Close.
func New(cfg Config) (*Server, error) {
	if len(cfg.Token) < minTokenLength {
		return nil, errors.New("agent: the token is too short")
	}
	if cfg.Machine == nil || cfg.Logger == nil {
		return nil, errors.New("agent: Machine and Logger are required")
	}
	if cfg.Reaper == nil {
		cfg.Reaper = ChildReaper{}
	}
	if cfg.Etc == "" {
		cfg.Etc = "/etc"
	}
	cfg.Logger = slog.New(traceLog{cfg.Logger.Handler()})
	cfg.Limits = cfg.Limits.withDefaults(machineMemory())
	s := &Server{cfg: cfg, bootID: newBootID(), table: newTable(cfg),
		streams: make(chan struct{}, cfg.Limits.Streams), transfers: make(chan struct{}, maxTransfers),
		watches: make(chan struct{}, maxWatches)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentServiceHandler(&service{server: s},
		connect.WithInterceptors(rpc.Errors(), faults(cfg.Logger)), connect.WithReadMaxBytes(maxRequestBytes),
		connect.WithCompression("gzip", nil, nil))) // none: it costs the guest time and saves nothing on this link
	s.fileRoutes(mux)
	s.handler = requireToken(cfg.Token, traced(s.thenPowerOff(mux)))
	return s, nil
}

// Handler serves the AgentService and /files, all of it behind the token. Serve it with rpc.Serve (HTTP/1.1 and h2c).
func (s *Server) Handler() http.Handler { return s.handler }

// thenPowerOff ends the machine after the answer to Shutdown: a request's context ends when its answer is out.
func (s *Server) thenPowerOff(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if s.powerOff.Load() {
			s.powerOffOnce.Do(func() { context.AfterFunc(r.Context(), s.cfg.Machine.Shutdown) })
		}
	})
}

// Close kills the process groups of all running processes, ends all streams and returns when the processes are gone
// and their output is spooled. Idempotent.
func (s *Server) Close() {
	s.stop()
	s.table.close()
}

func newBootID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// machineMemory is the memory of this machine in bytes; 512 MiB when the kernel does not say.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 512 << 20
	}
	return int64(info.Totalram) * int64(info.Unit)
}

func (l Limits) withDefaults(memory int64) Limits {
	if l.SpoolPerStream <= 0 {
		l.SpoolPerStream = 16 << 20
	}
	if l.SpoolTotal <= 0 {
		l.SpoolTotal = memory / 8
	}
	if l.Processes <= 0 {
		l.Processes = 4096
	}
	if l.Streams <= 0 {
		l.Streams = 512
	}
	if l.ReaderPatience <= 0 {
		l.ReaderPatience = 30 * time.Second
	}
	if l.DrainTime <= 0 {
		l.DrainTime = time.Second
	}
	return l
}

// privileged reports whether this process may become other users.
func privileged() bool { return os.Geteuid() == 0 }
