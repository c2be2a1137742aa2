package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/sandboxnet/netlab/frame"
	"github.com/space-sandbox/space/test/redteam/finding"
	"golang.org/x/sys/unix"
)

// wire sends and receives whole frames on the guest's interface.
type wire struct {
	fd, index int
	stop      chan struct{}
	done      sync.WaitGroup

	mu   sync.Mutex
	seen []frame.Packet // what came in, at most maxSeen
}

const maxSeen = 20_000

// pace keeps below the rate at which a box answers at all, so that silence is not only due to a limit.
const pace = 6 * time.Millisecond

func openWire(index int) (*wire, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ALL)))
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: index}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind the packet socket: %w", err)
	}
	timeout := unix.Timeval{Usec: 100_000}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("time limit of the packet socket: %w", err)
	}
	w := &wire{fd: fd, index: index, stop: make(chan struct{})}
	w.done.Go(w.receive)
	return w, nil
}

func (w *wire) close() {
	close(w.stop)
	w.done.Wait()
	unix.Close(w.fd)
}

func (w *wire) receive() {
	buf := make([]byte, 70_000)
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			continue // the time limit, or the link is down for a moment
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		p := frame.Parse(append([]byte(nil), buf[:n]...))
		w.mu.Lock()
		if len(w.seen) < maxSeen {
			w.seen = append(w.seen, p)
		}
		w.mu.Unlock()
	}
}

// send puts one frame on the wire, padded to the least that a link carries.
func (w *wire) send(f []byte) error {
	for len(f) < 60 {
		f = append(f, 0)
	}
	for {
		err := unix.Sendto(w.fd, f, 0, &unix.SockaddrLinklayer{Ifindex: w.index, Halen: 6})
		if err != unix.ENOBUFS && err != unix.EINTR {
			return err
		}
		time.Sleep(pace) // the queue is full
	}
}

func (w *wire) received() []frame.Packet {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]frame.Packet(nil), w.seen...)
}

// shoot sends frames that carry the attempt's mark, each twice: one may get lost without anybody's intent.
func (p *prober) shoot(technique, target string, build func(mark []byte) [][]byte) {
	seq := p.next()
	frames := build([]byte(p.plan.Mark(seq)))
	for range 2 {
		for _, f := range frames {
			if err := p.wire.send(f); err != nil {
				p.report(seq, technique, target, finding.Failed, err.Error())
				return
			}
			time.Sleep(pace)
		}
	}
	p.report(seq, technique, target, finding.Sent, fmt.Sprintf("%d frames", 2*len(frames)))
}

// strangeAnswers looks through everything that came in. A reset and a port-unreachable are how a box refuses, and the
// host's connections to the agent are none of ours; anything else is an answer from outside.
func (p *prober) strangeAnswers() {
	var first frame.Packet
	count := 0
	for _, got := range p.wire.received() {
		if p.isExpected(got) {
			continue
		}
		if count == 0 {
			first = got
		}
		count++
	}
	seq := p.next()
	if count == 0 {
		p.report(seq, "any_answer", "all crafted frames", finding.Silent, "")
		return
	}
	p.report(seq, "any_answer", "all crafted frames", finding.Answered, fmt.Sprintf("%d frames, the first: % x", count, head(first.Raw)))
}

func (p *prober) isExpected(got frame.Packet) bool {
	switch {
	case got.Type != frame.TypeIPv4:
		return false
	case got.Protocol == frame.ProtoTCP && len(got.Payload) >= 20:
		toAgent := got.Src == p.plan.HostAddr && binary.BigEndian.Uint16(got.Payload[2:]) == p.plan.AgentPort
		return toAgent || got.Payload[13]&frame.RST != 0
	default:
		return got.IsICMP(got.Src, 3, 3)
	}
}

func head(b []byte) []byte { return b[:min(len(b), 64)] }

func htons(v uint16) uint16 { return v<<8 | v>>8 }
