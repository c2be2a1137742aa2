package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
)

const (
	maxWatched     = 8192 // directories of one watch
	watchQueue     = 1024 // events kept for a client that does not read
	watchHeartbeat = 15 * time.Second
	watchMask      = unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM |
		unix.IN_MOVED_TO | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
)

// watchFiles answers GET /files/watch with server-sent events until the client goes or the directory does. The answer
// begins when the watch is set: what changes later is seen. Nothing is kept for a client that comes back: it gets an
// overflow event first, and looks for itself.
func (s *Server) watchFiles(w http.ResponseWriter, r *http.Request, req fileRequest) error {
	ctx, cancel := s.bind(r.Context())
	defer cancel()
	watch := &fileWatch{events: make(chan apiv1.FileEvent, watchQueue), lost: make(chan struct{}, 1), recursive: req.recursive,
		dirs: map[int32]string{}, ids: map[string]int32{}}
	ready, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		err := guarded(func() error {
			return asUser(req.account, func() error { return watch.run(ctx, req.path, ready) })
		})
		select {
		case ready <- err: // it did not come so far
		default:
		}
	}()
	if err := <-ready; err != nil {
		<-ended
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Header.Get("Last-Event-ID") != "" {
		watch.overflow()
	}
	watch.send(ctx, w, ended)
	cancel()
	<-ended
	return nil
}

// fileWatch watches one directory or file. run is its one goroutine that touches the maps.
type fileWatch struct {
	fd        int
	recursive bool
	base      string           // the directory; "" is /
	only      string           // the name that counts, when a file is watched; "" for all
	dirs      map[int32]string // by watch
	ids       map[string]int32 // the other way

	events chan apiv1.FileEvent
	lost   chan struct{} // an overflow that was not told yet
}

// send writes events until ctx ends, or until the watch has ended and all its events are written. An event that cannot
// be written ends it too.
func (wt *fileWatch) send(ctx context.Context, w http.ResponseWriter, ended <-chan struct{}) {
	rc := http.NewResponseController(w)
	beat := time.NewTicker(watchHeartbeat)
	defer beat.Stop()
	id := 0
	text := ": watching\n\n"
	for {
		if _, err := w.Write([]byte(text)); err != nil || rc.Flush() != nil {
			return
		}
		var e apiv1.FileEvent
		select {
		case e = <-wt.events: // first, so that none is left behind by an end
		default:
			var more bool
			if e, more = wt.next(ctx, beat.C, ended); !more {
				return
			}
		}
		if e.Type == "" {
			text = ":\n\n"
			continue
		}
		body, err := json.Marshal(e)
		if err != nil {
			return
		}
		id++
		text = fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", id, e.Type, body)
	}
}

// next waits for an event; one without a type is a heartbeat.
func (wt *fileWatch) next(ctx context.Context, beat <-chan time.Time, ended <-chan struct{}) (e apiv1.FileEvent, more bool) {
	select {
	case <-ctx.Done():
		return e, false
	case <-wt.lost:
		return apiv1.FileEvent{Type: apiv1.FileOverflow, Path: wt.path()}, true
	case e = <-wt.events:
		return e, true
	case <-beat:
		return e, true
	case <-ended:
	}
	select {
	case e = <-wt.events:
		return e, true
	default:
		return e, false
	}
}

// emit queues an event; when the client is too slow, it is told so instead.
func (wt *fileWatch) emit(kind, p string, dir bool) {
	select {
	case wt.events <- apiv1.FileEvent{Type: kind, Path: p, Directory: dir}:
	default:
		wt.overflow()
	}
}

func (wt *fileWatch) overflow() {
	select {
	case wt.lost <- struct{}{}:
	default:
	}
}

// run watches as the user until ctx ends. It answers ready once: nil when the watch is set.
func (wt *fileWatch) run(ctx context.Context, p string, ready chan<- error) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	wt.fd = fd
	if err := wt.begin(p); err != nil {
		return err
	}
	ready <- nil
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })()
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if !wt.digest(buf[:n]) {
			return nil
		}
	}
}

// begin sets the first watches. Of a file its directory is watched: a file that is replaced is still seen.
func (wt *fileWatch) begin(p string) error {
	fd, err := openAt(unix.AT_FDCWD, p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	p = strings.TrimRight(p, "/")
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		wt.recursive = false
		i := strings.LastIndexByte(p, '/')
		p, wt.only = p[:i], p[i+1:]
	}
	wt.base = p
	if err := wt.add(p, 0); err != nil {
		return err
	}
	if wt.recursive {
		return wt.tree(p, false)
	}
	return nil
}
