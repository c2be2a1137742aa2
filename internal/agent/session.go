package agent

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// start starts p unless that was done before, and returns when it runs or has failed.
func (t *table) start(p *process) {
	p.start.Do(func() {
		spec := p.spec
		p.spec = nil // argv and env may be large, and are not needed again
		t.releaseSpec(p)
		exited := make(chan Exit, 1)
		pl, err := t.prepare(spec)
		var pid int
		var ends pipes
		if err == nil {
			pl.size = p.terminalSize()
			pid, ends, err = t.spawn(pl, func(e Exit) {
				p.setReaped()
				exited <- e
			})
		}
		if err != nil {
			t.fail(p, err)
			return
		}
		p.stdin.open(ends.stdin, ends.terminal != nil)
		p.setTerminal(ends.terminal)
		p.setRunning(pid, time.Now())
		t.changed(p)
		t.goroutines.Go(func() { t.session(p, ends, pl.timeout, exited) })
	})
}

// fail notes that p could not be started.
func (t *table) fail(p *process, err error) {
	code := startFailed
	if se, ok := errors.AsType[*startError](err); ok {
		code = se.code
	}
	p.stdin.open(nil, false)
	p.setFailed(code, cleanText(err.Error(), maxErrorMessage))
	p.output.end()
	t.changed(p)
}

// session follows one running process to its end: it spools its output, kills its group when its time is over, and
// when its first process has ended collects what is left in the pipes.
func (t *table) session(p *process, ends pipes, timeout time.Duration, exited <-chan Exit) {
	var pumps sync.WaitGroup
	for which, f := range ends.outputs() {
		pumps.Go(func() { pump(f, p.output, which) })
	}
	if timeout > 0 {
		defer startDeadline(timeout, time.Now, p.expire).stop()
	}
	exit := <-exited
	at := time.Now()
	ends.closeChild() // a terminal's other side: without it the pump sees the end
	p.stdin.close()
	drained := make(chan struct{})
	go func() { pumps.Wait(); close(drained) }()
	t.drain(p, ends, drained)
	p.setTerminal(nil)
	for _, f := range ends.outputs() {
		_ = f.Close() // read ends have nothing to flush
	}
	p.setExited(exit, at)
	p.output.end()
	t.changed(p)
}

// drain waits until the pipes are at their end. Descendants may hold them open for ever, and a reader may hold back
// the pumps: after DrainTime the pumps take what is in the pipes, wait for nobody, and stop.
func (t *table) drain(p *process, ends pipes, drained <-chan struct{}) {
	timer := time.NewTimer(t.drainTime)
	defer timer.Stop()
	select {
	case <-drained:
		return
	case <-timer.C:
	}
	p.output.finishUp()
	past := time.Unix(1, 0)
	for _, f := range ends.outputs() {
		_ = f.SetReadDeadline(past) // the pipes are open and pollable
	}
	<-drained
}

const pumpBuffer = 32 << 10

// pump spools one stream until its end or its deadline.
func pump(f *os.File, l *outputLog, which int) {
	buf := make([]byte, pumpBuffer)
	for {
		n, err := f.Read(buf)
		l.write(which, buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			takeRest(f, l, which, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// maxRest bounds what is taken out of a pipe at the very end; a pipe may be made as large as this.
const maxRest = 1 << 20

// takeRest spools what is in the pipe now, without waiting for more.
func takeRest(f *os.File, l *outputLog, which int, buf []byte) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) { // fails only when f is closed
		rest, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if err != nil {
			return
		}
		for rest = min(rest, maxRest); rest > 0; {
			n, err := unix.Read(int(fd), buf[:min(rest, len(buf))])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return
			}
			l.write(which, buf[:n])
			rest -= n
		}
	})
}
