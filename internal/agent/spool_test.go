package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// reference is the simple model of one stream: everything ever written.
type reference struct{ all []byte }

// checkPiece compares what a reader got with the reference and returns the reader's next offset.
func checkPiece(t interface{ Fatalf(string, ...any) }, p piece, pos uint64, ref *reference) uint64 {
	if p.offset != pos {
		t.Fatalf("piece at %d, want %d", p.offset, pos)
	}
	if p.data == nil {
		if p.gapTo <= pos || p.gapTo > uint64(len(ref.all)) {
			t.Fatalf("gap from %d to %d of %d", pos, p.gapTo, len(ref.all))
		}
		return p.gapTo
	}
	end := pos + uint64(len(p.data))
	if end > uint64(len(ref.all)) || !bytes.Equal(p.data, ref.all[pos:end]) {
		t.Fatalf("wrong bytes at %d", pos)
	}
	return end
}

// TestSpoolModel writes to the streams of several logs within small bounds and compares what is kept, what readers
// get and what is counted with the reference. No reader is attached while something is written, so nothing waits.
func TestSpoolModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		perStream := rapid.Int64Range(1, 5000).Draw(t, "perStream")
		total := rapid.Int64Range(2048, 20000).Draw(t, "total")
		s := newSpool(perStream, total, time.Hour)
		var logs [3]*outputLog
		var refs [3][streamCount]reference
		for i := range logs {
			logs[i] = s.newLog()
		}
		next := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				i, which := rapid.IntRange(0, 2).Draw(t, "log"), rapid.IntRange(0, 1).Draw(t, "stream")
				if !logs[i].ended.IsZero() {
					return
				}
				data := make([]byte, rapid.IntRange(1, 3000).Draw(t, "n"))
				for k := range data {
					data[k] = next
					next = next*7 + 1
				}
				logs[i].write(which, data)
				refs[i][which].all = append(refs[i][which].all, data...)
			},
			"end": func(t *rapid.T) { logs[rapid.IntRange(0, 2).Draw(t, "log")].end() },
			"ack": func(t *rapid.T) { logs[rapid.IntRange(0, 2).Draw(t, "log")].acknowledge() },
			"replace": func(t *rapid.T) {
				i := rapid.IntRange(0, 2).Draw(t, "log")
				logs[i].forget()
				logs[i], refs[i] = s.newLog(), [streamCount]reference{}
			},
			"": func(t *rapid.T) { checkSpool(t, s, logs[:], refs[:]) },
		})
	})
}

// checkSpool checks the bounds, and reads every stream from its beginning.
func checkSpool(t *rapid.T, s *spool, logs []*outputLog, refs [][streamCount]reference) {
	var capacity int64
	for i, l := range logs {
		var dropped, ends uint64
		for which := range l.streams {
			st, ref := &l.streams[which], &refs[i][which]
			for _, c := range st.chunks {
				capacity += int64(cap(c.data))
			}
			if int64(st.kept()) > s.perStream {
				t.Fatalf("a stream keeps %d bytes, bound %d", st.kept(), s.perStream)
			}
			ends += st.end
			dropped += readAll(t, l, which, ref)
		}
		sizes, truncated := l.sizes()
		if sizes[stdoutStream]+sizes[stderrStream]+sizes[ptyStream] != ends || truncated != dropped {
			t.Fatalf("sizes: %d, %d dropped; want %d, %d", sizes, truncated, ends, dropped)
		}
	}
	if s.used != capacity || s.used > s.total {
		t.Fatalf("used %d, chunks %d, bound %d", s.used, capacity, s.total)
	}
}

// readAll reads one stream from 0 to its end and returns how much of it was gone.
func readAll(t *rapid.T, l *outputLog, which int, ref *reference) (gone uint64) {
	r, err := l.newReader([]position{{stream: which}}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	pos := uint64(0)
	for {
		p, err := r.next(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		to := checkPiece(t, p, pos, ref)
		if p.data == nil {
			gone += to - pos
		}
		pos = to
	}
	if pos != uint64(len(ref.all)) {
		t.Fatalf("read up to %d of %d", pos, len(ref.all))
	}
	return gone
}

// TestSpoolReaderNeverLoses lets readers of different speed read while a writer writes: a reader that never pauses
// as long as `patience` gets every byte of both streams.
func TestSpoolReaderNeverLoses(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		perStream := rapid.Int64Range(1, 2000).Draw(rt, "perStream")
		total := rapid.Int64Range(1500, 8000).Draw(rt, "total")
		writes := rapid.SliceOfN(rapid.IntRange(1, 1500), 1, 20).Draw(rt, "writes")
		pause := time.Duration(rapid.IntRange(0, 29).Draw(rt, "pause")) * time.Second
		synctest.Test(t, func(t *testing.T) {
			l := newSpool(perStream, total, 30*time.Second).newLog()
			r, err := l.newReader([]position{{stream: stdoutStream}, {stream: stderrStream}}, true)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			want := [streamCount]reference{}
			for i, n := range writes {
				want[i%2].all = append(want[i%2].all, bytes.Repeat([]byte{byte(i)}, n)...)
			}
			go func() {
				for i, n := range writes {
					l.write(i%2, bytes.Repeat([]byte{byte(i)}, n))
				}
				l.end()
			}()
			var pos [streamCount]uint64
			for {
				p, err := r.next(t.Context())
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if p.data == nil {
					t.Fatalf("a gap from %d to %d although it reads every %v", p.offset, p.gapTo, pause)
				}
				pos[p.stream] = checkPiece(t, p, pos[p.stream], &want[p.stream])
				time.Sleep(pause) // the bubble's clock: this is the reader's speed
			}
			for i := range pos {
				if pos[i] != uint64(len(want[i].all)) {
					t.Fatalf("stream %d: read %d of %d", i, pos[i], len(want[i].all))
				}
			}
		})
	})
}

// TestSpoolReaderThatStops: it holds the writer back for 30 s after its last read, not longer, and then sees the gap.
func TestSpoolReaderThatStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newSpool(1000, 1<<20, 30*time.Second).newLog()
		r, err := l.newReader([]position{{stream: stdoutStream}}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		begin := time.Now()
		l.write(stdoutStream, make([]byte, 1000))
		time.Sleep(10 * time.Second)
		if p, err := r.next(t.Context()); err != nil || len(p.data) == 0 {
			t.Fatalf("%v, %v", p, err)
		}
		l.write(stdoutStream, make([]byte, 2500))
		if took := time.Since(begin); took != 40*time.Second {
			t.Errorf("the writer waited until %v, want 40s", took)
		}
		before := time.Now()
		l.write(stdoutStream, make([]byte, 1000))
		if time.Since(before) != 0 {
			t.Errorf("the writer waited again for a reader that is away")
		}
		p, err := r.next(t.Context())
		if err != nil || p.data != nil || p.gapTo != 3500 {
			t.Errorf("got %+v, %v; want a gap to 3500", p, err)
		}
	})
}

// TestSpoolWaitingReaderIsProtected: a reader that has waited for output for minutes is not one that does not read.
func TestSpoolWaitingReaderIsProtected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newSpool(1000, 1<<20, 30*time.Second).newLog()
		r, err := l.newReader([]position{{stream: stdoutStream}}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		got := make(chan int)
		go func() {
			n := 0
			for {
				p, err := r.next(t.Context())
				if err != nil {
					got <- n
					return
				}
				n += len(p.data)
			}
		}()
		time.Sleep(5 * time.Minute)
		l.write(stdoutStream, make([]byte, 5000))
		l.end()
		if n := <-got; n != 5000 {
			t.Errorf("read %d of 5000", n)
		}
	})
}

// TestSpoolFinishing: what a process wrote before its end is kept even if a reader holds the stream full.
func TestSpoolFinishing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newSpool(1000, 1000, 30*time.Second).newLog()
		r, err := l.newReader([]position{{stream: stdoutStream}}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		begin := time.Now()
		time.AfterFunc(time.Second, l.finishUp)
		l.write(stdoutStream, make([]byte, 3000))
		if took := time.Since(begin); took != time.Second {
			t.Errorf("the writer waited %v", took)
		}
		l.end()
		n := 0
		for {
			p, err := r.next(t.Context())
			if err != nil {
				break
			}
			n += len(p.data)
		}
		if n != 3000 {
			t.Errorf("read %d of 3000", n)
		}
	})
}

// TestSpoolOldestEndedGoFirst: of ended logs the acknowledged go first, then the oldest; running ones last.
func TestSpoolOldestEndedGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpool(1<<20, 4096, time.Second)
		var logs [4]*outputLog
		for i := range logs {
			logs[i] = s.newLog()
			logs[i].write(stdoutStream, make([]byte, 1024))
		}
		for _, i := range []int{1, 0, 2} {
			logs[i].end()
			time.Sleep(time.Second)
		}
		logs[2].acknowledge()
		gone := map[int]bool{}
		for _, victim := range []int{2, 1, 0} {
			gone[victim] = true
			s.newLog().write(stdoutStream, make([]byte, 1024))
			for i, l := range logs {
				if _, dropped := l.sizes(); (dropped > 0) != gone[i] {
					t.Errorf("log %d lost %d bytes when it was %d's turn", i, dropped, victim)
				}
			}
		}
		if _, dropped := logs[3].sizes(); dropped != 0 {
			t.Errorf("the running log lost %d bytes", dropped)
		}
	})
}

// TestSpoolGrowsLazily: little output costs little memory.
func TestSpoolGrowsLazily(t *testing.T) {
	t.Parallel()
	s := newSpool(16<<20, 1<<30, time.Second)
	for range 1000 {
		s.newLog().write(stdoutStream, []byte("ok\n"))
	}
	if s.used > 1000*minChunk {
		t.Errorf("1000 short outputs take %d bytes", s.used)
	}
}

// TestReaderOffsets: positions behind the end are refused, "end" is the end.
func TestReaderOffsets(t *testing.T) {
	t.Parallel()
	l := newSpool(1<<20, 1<<20, time.Second).newLog()
	l.write(stderrStream, []byte("abc"))
	if _, err := l.newReader([]position{{stream: stderrStream, offset: 4}}, false); err == nil {
		t.Error("an offset behind the end was accepted")
	}
	r, err := l.newReader([]position{{stream: stderrStream, end: true}}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	l.write(stderrStream, []byte("def"))
	if _, err := r.next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("got %v without follow after the end it was opened at", err)
	}
}
