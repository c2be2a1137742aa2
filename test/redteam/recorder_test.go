package redteam_test

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
	"github.com/space-sandbox/space/test/redteam/finding"
	"golang.org/x/sys/unix"
)

// recorder looks at every frame on the links of one network namespace: it notes the attempts whose marks it sees, and
// whatever carries the guest's addresses.
type recorder struct {
	fd   int
	plan finding.Plan
	stop chan struct{}
	done sync.WaitGroup

	arrived map[int]bool
	strays  []string
}

// record starts a recorder in the namespace of the calling thread; link 0 is all of them.
func record(plan finding.Plan, link string) (*recorder, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	r := &recorder{fd: fd, plan: plan, stop: make(chan struct{}), arrived: map[int]bool{}}
	if err := r.open(link); err != nil {
		unix.Close(fd)
		return nil, err
	}
	r.done.Go(r.run)
	return r, nil
}

func (r *recorder) open(link string) error {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return fmt.Errorf("buffer of the packet socket: %w", err)
	}
	timeout := unix.Timeval{Usec: 200_000}
	if err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("time limit of the packet socket: %w", err)
	}
	addr := &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8}
	if link != "" {
		nif, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		addr.Ifindex = nif.Index
	}
	return unix.Bind(r.fd, addr)
}

func (r *recorder) run() {
	buf := make([]byte, 70_000)
	marks := r.plan.Marks()
	var stopped time.Time
	for {
		n, _, err := unix.Recvfrom(r.fd, buf, 0)
		if stopped.IsZero() {
			select {
			case <-r.stop:
				stopped = time.Now()
			default:
			}
		}
		if err != nil { // nothing for a while
			if !stopped.IsZero() {
				return
			}
			continue
		}
		r.note(buf[:n], marks)
		if !stopped.IsZero() && time.Since(stopped) > 2*time.Second {
			return // the host is never quiet; what the guest sent before the end has long been read
		}
	}
}

func (r *recorder) note(raw []byte, marks func([]byte) []int) {
	for _, seq := range marks(raw) {
		r.arrived[seq] = true
	}
	p := frame.Parse(raw)
	fromGuest := p.Src == r.plan.GuestAddr || len(raw) >= 12 && bytes.Equal(raw[6:12], frame.MAC(r.plan.GuestMAC))
	if fromGuest && len(r.strays) < 20 {
		r.strays = append(r.strays, fmt.Sprintf("% x", raw[:min(len(raw), 80)]))
	}
}

// finish reads what is still queued and makes sure that nothing was missed.
func (r *recorder) finish(t *testing.T) (arrived map[int]bool, strays []string) {
	t.Helper()
	close(r.stop)
	r.done.Wait()
	defer unix.Close(r.fd)
	stats, err := unix.GetsockoptTpacketStats(r.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		t.Fatalf("statistics of the packet socket: %v", err)
	}
	if stats.Drops > 0 {
		t.Errorf("the recorder has missed %d frames", stats.Drops)
	}
	return r.arrived, r.strays
}
