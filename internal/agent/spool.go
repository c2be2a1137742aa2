package agent

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// spool keeps the newest output of all processes within two bounds: bytes per stream and bytes in all. One lock
// guards all of it: what is done under it is copying at most one chunk.
//
// Who gives way when room is needed: within a stream its own oldest bytes; for the sum first what ended sessions
// hold (acknowledged before others, oldest first), then the largest stream of a running one. Bytes that an attached
// reader has yet to read are kept until that reader has not read for `patience`; so long the writer waits.
type spool struct {
	perStream int64
	total     int64
	patience  time.Duration

	mu      sync.Mutex
	used    int64 // capacity of all chunks
	logs    map[*outputLog]struct{}
	blocked int           // writers that wait
	freed   chan struct{} // closed and replaced when a waiting writer may go on
}

func newSpool(perStream, total int64, patience time.Duration) *spool {
	return &spool{perStream: perStream, total: total, patience: patience,
		logs: map[*outputLog]struct{}{}, freed: make(chan struct{})}
}

// The streams of an outputLog.
const (
	stdoutStream = iota
	stderrStream
	ptyStream
	streamCount
)

// outputLog is the output of one process. Its fields belong to the spool's lock.
type outputLog struct {
	spool     *spool
	streams   [streamCount]stream
	readers   map[*reader]struct{}
	changed   chan struct{} // closed and replaced when there is something new to read
	finishing bool          // the writer does not wait any more
	ended     time.Time     // zero while there may be more
	acked     bool
}

// newLog makes an empty log. Release it with forget.
func (s *spool) newLog() *outputLog {
	l := &outputLog{spool: s, readers: map[*reader]struct{}{}, changed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logs[l] = struct{}{}
	return l
}

// write appends data to one stream. It waits for attached readers as described at spool; each stream has one writer.
func (l *outputLog) write(which int, data []byte) {
	s := l.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(data) > 0 {
		n, until := l.room(which, len(data))
		if n == 0 {
			s.wait(until)
			continue
		}
		l.streams[which].put(data[:n])
		data = data[n:]
		l.notify()
	}
}

// room makes place for up to want bytes at the end of the stream's last chunk and returns for how many; if for none,
// the time at which waiting ends.
func (l *outputLog) room(which, want int) (n int, until time.Time) {
	s, st, now := l.spool, &l.streams[which], time.Now()
	if st.spare() == 0 {
		size := min(st.nextChunk(want), int(max(s.total, 1)))
		for s.used+int64(size) > s.total {
			ok, wake := s.reclaim(now)
			if ok {
				continue
			}
			if l.finishing {
				break
			}
			return 0, wake
		}
		st.grow(size)
		s.used += int64(size)
	}
	n = min(want, st.spare(), int(s.perStream))
	free := int(s.perStream) - st.kept()
	if n <= free || l.finishing {
		return n, until
	}
	limit, until := l.unneeded(which, now)
	take := min(uint64(n-free), limit-st.start)
	if n = free + int(take); n <= 0 {
		return 0, until
	}
	s.used -= st.drop(take)
	return n, until
}

// unneeded returns the offset below which no protected reader needs the stream's bytes, and when the first of the
// readers that need more loses its protection.
func (l *outputLog) unneeded(which int, now time.Time) (limit uint64, until time.Time) {
	st := &l.streams[which]
	limit = st.end
	for r := range l.readers {
		pos, protected, end := r.needs(which, now)
		if !protected || pos >= st.end {
			continue
		}
		limit = min(limit, max(pos, st.start))
		if until.IsZero() || end.Before(until) {
			until = end
		}
	}
	return limit, until
}

// wait releases the lock until a reader or a log has freed something, or the time is reached.
func (s *spool) wait(until time.Time) {
	s.blocked++
	ch := s.freed
	s.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	select {
	case <-ch:
	case <-timer.C:
	}
	timer.Stop()
	s.mu.Lock()
	s.blocked--
}

// wakeWriters lets waiting writers look again.
func (s *spool) wakeWriters() {
	if s.blocked > 0 {
		close(s.freed)
		s.freed = make(chan struct{})
	}
}

// reclaim frees at least one chunk that no protected reader needs; if there is none, it says when the first reader
// loses its protection.
func (s *spool) reclaim(now time.Time) (ok bool, until time.Time) {
	until = now.Add(s.patience)
	var ended []*outputLog
	var largest *outputLog
	var which int
	for l := range s.logs {
		if !l.ended.IsZero() {
			ended = append(ended, l)
			continue
		}
		for i := range l.streams {
			free, wake := l.reclaimable(i, now)
			until = earlier(until, wake)
			if free && (largest == nil || l.streams[i].kept() > largest.streams[which].kept()) {
				largest, which = l, i
			}
		}
	}
	slices.SortFunc(ended, byWorth)
	for _, l := range ended {
		for i := range l.streams {
			free, wake := l.reclaimable(i, now)
			until = earlier(until, wake)
			for free {
				ok = true
				s.used -= l.streams[i].dropChunk()
				free, _ = l.reclaimable(i, now)
			}
		}
		if ok {
			return true, until
		}
	}
	if largest == nil {
		return false, until
	}
	s.used -= largest.streams[which].dropChunk()
	return true, until
}

// byWorth orders ended logs: those that go first come first.
func byWorth(a, b *outputLog) int {
	if a.acked != b.acked {
		if a.acked {
			return -1
		}
		return 1
	}
	return cmp.Or(a.ended.Compare(b.ended), 0)
}

func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// reclaimable reports whether the first chunk of a stream may go; if a reader still needs it, until when.
func (l *outputLog) reclaimable(which int, now time.Time) (ok bool, until time.Time) {
	st := &l.streams[which]
	if len(st.chunks) == 0 {
		return false, time.Time{}
	}
	limit, until := l.unneeded(which, now)
	return limit >= st.firstChunkEnd(), until
}

// notify wakes readers that wait for something new.
func (l *outputLog) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// finishUp makes the writer stop waiting for readers: what it still brings is kept beyond the bounds. The caller
// brings at most what was in a pipe.
func (l *outputLog) finishUp() {
	l.spool.mu.Lock()
	defer l.spool.mu.Unlock()
	l.finishing = true
	l.spool.wakeWriters()
}

// end says that nothing more will be written.
func (l *outputLog) end() {
	l.spool.mu.Lock()
	defer l.spool.mu.Unlock()
	if l.ended.IsZero() {
		l.ended = time.Now()
		l.notify()
		l.spool.wakeWriters()
	}
}

// acknowledge makes the log the first to go.
func (l *outputLog) acknowledge() {
	l.spool.mu.Lock()
	defer l.spool.mu.Unlock()
	l.acked = true
}

// forget drops everything at once; readers see a gap and the end.
func (l *outputLog) forget() {
	s := l.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range l.streams {
		s.used -= l.streams[i].drop(uint64(l.streams[i].kept()))
		s.used -= l.streams[i].dropTail()
	}
	delete(s.logs, l)
	if l.ended.IsZero() {
		l.ended = time.Now()
	}
	l.notify()
	s.wakeWriters()
}

// sizes returns the ends of all streams and how many bytes of them have been dropped.
func (l *outputLog) sizes() (ends [streamCount]uint64, dropped uint64) {
	l.spool.mu.Lock()
	defer l.spool.mu.Unlock()
	for i := range l.streams {
		ends[i] = l.streams[i].end
		dropped += l.streams[i].start
	}
	return ends, dropped
}
