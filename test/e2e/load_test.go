//go:build realvm

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestLoad gives one microVM much to do, and looks at what that costs the host.
func TestLoad(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	mib := 512
	i.create(apiv1.CreateSandbox{Name: "load", MemoryMiB: &mib})
	i.sh("load", fmt.Sprintf("seq -f %%019.0f %d > lines", blockLines))
	most := i.watchMemory(func() {
		t.Run("streams", func(t *testing.T) {
			t.Run("slow reader", func(t *testing.T) { t.Parallel(); testSlowReader(t, i) })
			t.Run("no reader", func(t *testing.T) { t.Parallel(); testNoReader(t, i) })
			t.Run("dying reader", func(t *testing.T) { t.Parallel(); testDyingReader(t, i) })
		})
		t.Run("in a row", func(t *testing.T) { testManyInARow(t, i) })
		t.Run("at once", func(t *testing.T) { testManyAtOnce(t, i) })
	})
	t.Logf("control, node and gateway grew by %d MiB at most", most>>20)
	if most >= 64<<20 {
		t.Errorf("control, node and gateway grew by %d MiB", most>>20)
	}
}

// watchMemory runs do and returns by how much the parts grew meanwhile at most.
func (i *installation) watchMemory(do func()) (most int64) {
	i.t.Helper()
	before := i.memory()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, i.memory()-before)
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	return most
}

// writer is a command that writes 200 MiB as fast as it can: blocks of numbered lines.
func writer() []string {
	return []string{"sh", "-c", fmt.Sprintf("for n in $(seq %d); do cat lines; done", blocks)}
}

const (
	lineBytes  = 20
	blockLines = 64 << 10
	blocks     = 160
	total      = lineBytes * blockLines * blocks
)

// testSlowReader: the writer is held back, and nothing is lost.
func testSlowReader(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "load", apiv1.CreateCommand{Argv: writer()})
	if err != nil {
		t.Fatal(err)
	}
	pace := time.NewTicker(80 * time.Millisecond) // for each MiB
	defer pace.Stop()
	r := &reader{attach: made.Attach, block: block()}
	for ended := false; !ended; {
		if ended, err = r.until(t.Context(), total, func() { <-pace.C }); err != nil {
			t.Fatalf("at %d: %v", r.offset, err)
		}
	}
	got, err := i.client.WaitCommand(t.Context(), made.ID)
	if err != nil || got.StdoutBytes != total || r.offset != total || r.missing != 0 || *got.ExitCode != 0 {
		t.Errorf("read to %d, %d missing, record %+v, %v", r.offset, r.missing, got, err)
	}
}

// testDyingReader reads over connections that are cut again and again, and once stays away for long: each byte comes
// once, or is named as missing.
func testDyingReader(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "load", apiv1.CreateCommand{Argv: writer()})
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{attach: made.Attach, block: block()}
	deaths := 0
	for ended := false; !ended; deaths++ {
		if ended, err = r.until(t.Context(), r.offset+15<<20, func() {}); err != nil {
			t.Fatalf("at %d after %d deaths: %v", r.offset, deaths, err)
		}
		if deaths == 2 {
			i.eventually(10*time.Minute, "more is written than is kept", func() bool {
				now, err := i.client.Command(t.Context(), made.ID)
				return err == nil && now.StdoutBytes > r.offset+40<<20
			})
		}
	}
	got, err := i.client.WaitCommand(t.Context(), made.ID)
	if err != nil || got.StdoutBytes != total || r.offset != total || *got.ExitCode != 0 {
		t.Errorf("read to %d, record %+v, %v", r.offset, got, err)
	}
	if r.received+r.missing != total || r.missing < 20<<20 || deaths < 5 {
		t.Errorf("%d received, %d missing, of %d; the reader died %d times", r.received, r.missing, total, deaths)
	}
}

// reader reads a writer's output and checks every line.
type reader struct {
	attach                    apiv1.Attach
	block                     []byte
	offset, received, missing uint64
}

// until reads one connection from offset to limit, calling each for each MiB, and dies; or to the exit.
func (r *reader) until(ctx context.Context, limit uint64, each func()) (ended bool, err error) {
	conn, _, err := websocket.Dial(ctx, fmt.Sprintf("%s?stdout_offset=%d&token=%s", r.attach.URL, r.offset, r.attach.Token), nil)
	if err != nil {
		return false, err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	for r.offset < limit || limit == total {
		_, frame, err := conn.Read(ctx)
		if err != nil {
			return false, err
		}
		switch body := frame[1:]; {
		case frame[0] == apiv1.ChannelStdout:
			before := r.received
			if err := r.take(body); err != nil {
				return false, err
			}
			if before>>20 != r.received>>20 {
				each()
			}
		case bytes.Contains(body, []byte(`"type":"gap"`)):
			var from, to uint64
			if _, err := fmt.Sscanf(string(body), `{"type":"gap","channel":1,"from":%d,"to":%d}`, &from, &to); err != nil || from != r.offset || to <= from {
				return false, errors.Join(err, fmt.Errorf("gap %s at %d", body, r.offset))
			}
			r.missing += to - from
			r.offset = to
		case bytes.Contains(body, []byte(`"type":"exit"`)):
			return true, nil
		}
	}
	return false, nil
}

// take compares data with what the writer writes at the offset.
func (r *reader) take(data []byte) error {
	for len(data) > 0 {
		want := r.block[r.offset%uint64(len(r.block)):]
		n := min(len(want), len(data))
		if !bytes.Equal(data[:n], want[:n]) {
			return fmt.Errorf("other bytes between %d and %d", r.offset, r.offset+uint64(n))
		}
		data = data[n:]
		r.offset += uint64(n)
		r.received += uint64(n)
	}
	return nil
}

// block is what the writer writes again and again.
func block() []byte {
	var b bytes.Buffer
	for n := range blockLines {
		fmt.Fprintf(&b, "%019d\n", n+1)
	}
	return b.Bytes()
}

// testNoReader lets the writer run with nobody there: it is not held back, and what is gone is counted.
func testNoReader(t *testing.T, i *installation) {
	made, err := i.client.CreateCommand(t.Context(), "load", apiv1.CreateCommand{Argv: writer(), Start: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := i.client.WaitCommand(t.Context(), made.ID)
	if err != nil || got.StdoutBytes != total || got.TruncatedBytes == 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	out, err := i.client.Output(t.Context(), made.ID, nil, client.OutputOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	n, err := io.Copy(io.Discard, out)
	if err != nil || out.GapFrom != 0 || out.GapTo+uint64(n) != total {
		t.Errorf("%d bytes after a gap %d to %d of %d: %v", n, out.GapFrom, out.GapTo, total, err)
	}
}

// testManyInARow runs a thousand short commands, one after another.
func testManyInARow(t *testing.T, i *installation) {
	for n := range 1000 {
		res := i.exec("load", apiv1.Exec{Argv: []string{"sh", "-c", fmt.Sprintf("exit %d", n%256)}})
		if res.ExitCode == nil || *res.ExitCode != n%256 {
			t.Fatalf("command %d: %+v", n, res)
		}
	}
}

// testManyAtOnce runs fifty commands that are all there before the first of them may end.
func testManyAtOnce(t *testing.T, i *installation) {
	const count = 50
	var running, seen sync.WaitGroup
	running.Add(count)
	seen.Add(count)
	var g errgroup.Group
	for n := range count {
		g.Go(func() error {
			made, err := i.client.CreateCommand(t.Context(), "load", apiv1.CreateCommand{Stdin: true, Start: true,
				Argv: []string{"sh", "-c", "read code; echo got $code; exit $code"}})
			running.Done()
			if err != nil {
				seen.Done()
				return err
			}
			running.Wait()
			now, err := i.client.Command(t.Context(), made.ID)
			seen.Done()
			if err != nil || now.State != "running" {
				return fmt.Errorf("command %d: %+v, %w", n, now, err)
			}
			seen.Wait()
			if _, err := i.client.WriteStdin(t.Context(), made.ID, strings.NewReader(fmt.Sprintln(n)), client.StdinOptions{EOF: true}); err != nil {
				return err
			}
			got, err := i.client.WaitCommand(t.Context(), made.ID)
			if err != nil || got.ExitCode == nil || *got.ExitCode != n || got.StdoutBytes != uint64(len(fmt.Sprintf("got %d\n", n))) {
				return fmt.Errorf("command %d: %+v, %w", n, got, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
