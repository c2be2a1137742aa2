package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}` + "\n"

// peer plays QEMU: it greets and answers each command by what answer returns.
func peer(t *testing.T, answer func(command string, id uint64) string) (*Conn, chan Event, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	go func() {
		fmt.Fprint(theirs, greeting)
		for r := bufio.NewScanner(theirs); r.Scan(); {
			var request struct {
				Execute string
				ID      uint64
			}
			if err := json.Unmarshal(r.Bytes(), &request); err != nil {
				t.Errorf("request %q: %v", r.Text(), err)
			}
			reply := fmt.Sprintf(`{"return": {}, "id": %d}`+"\n", request.ID)
			if request.Execute != "qmp_capabilities" {
				reply = answer(request.Execute, request.ID)
			}
			if _, err := io.WriteString(theirs, reply); err != nil {
				return
			}
		}
	}()
	events := make(chan Event, 4)
	c, err := Open(t.Context(), ours, events)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, events, err
}

func TestExecute(t *testing.T) {
	t.Parallel()
	c, events, err := peer(t, func(command string, id uint64) string {
		if command == "bad" {
			return fmt.Sprintf(`{"id": %d, "error": {"class": "GenericError", "desc": "no"}}`+"\r\n", id)
		}
		return fmt.Sprintf(`{"event": "STOP", "timestamp": {"seconds": 1}}`+"\n"+`{"return": {"status": %q}, "id": %d}`+"\r\n", command, id)
	})
	if err != nil {
		t.Fatal(err)
	}
	var status struct{ Status string }
	if err := c.Execute(t.Context(), "query-status", map[string]int{"a": 1}, &status); err != nil || status.Status != "query-status" {
		t.Errorf("%+v %v", status, err)
	}
	if e := <-events; e.Name != "STOP" {
		t.Errorf("event %+v", e)
	}
	if err, ok := errors.AsType[*Error](c.Execute(t.Context(), "bad", nil, nil)); !ok || err.Desc != "no" {
		t.Errorf("error %v", err)
	}
	if err := c.Execute(t.Context(), "again", nil, &status); err != nil || status.Status != "again" {
		t.Errorf("after an error: %+v %v", status, err)
	}
	c.Close()
	if err := c.Execute(t.Context(), "closed", nil, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Everything that a VMM under a guest's control may answer ends the connection, and nothing hangs.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"not json":       "hello\n",
		"no form":        "{}\n",
		"two forms":      `{"return": {}, "event": "STOP"}` + "\n",
		"wrong id":       `{"return": {}, "id": 999}` + "\n",
		"no id":          `{"return": {}}` + "\n",
		"second hello":   greeting,
		"endless line":   strings.Repeat("x", MaxLine+1),
		"deep":           strings.Repeat("[", 20000) + "\n",
		"id of a string": `{"return": {}, "id": "1"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, err := peer(t, func(string, uint64) string { return reply })
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Execute(t.Context(), "query-status", nil, nil); err == nil {
				t.Error("accepted")
			}
			<-c.Done()
		})
	}
}

func TestSilenceEndsWithTheContext(t *testing.T) {
	t.Parallel()
	c, _, err := peer(t, func(string, uint64) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := c.Execute(ctx, "query-status", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-c.Done()

	ours, theirs := net.Pipe()
	defer theirs.Close()
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := Open(ctx, ours, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("without a greeting: %v", err)
	}
}

// A flood of events is read slowly: the flooder waits, we do not work for it.
func TestFloodIsSlowedDown(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	defer theirs.Close()
	sent := make(chan int, 1)
	go func() {
		r := bufio.NewReader(theirs)
		fmt.Fprint(theirs, greeting)
		r.ReadString('\n')
		fmt.Fprintln(theirs, `{"return": {}, "id": 1}`)
		n := 0
		theirs.SetWriteDeadline(time.Now().Add(window / 2))
		for ; n < 100*burst; n++ {
			if _, err := fmt.Fprintln(theirs, `{"event": "X"}`); err != nil {
				break
			}
		}
		sent <- n
	}()
	c, err := Open(t.Context(), ours, make(chan Event))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := <-sent; n > MaxLine/14+2*burst {
		t.Errorf("%d events were read in half a window", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{greeting, `{"return": {}, "id": 1}`, `{"error": {"class": "a", "desc": "b"}}`,
		`{"event": "SHUTDOWN", "data": {"guest": true}}`, `{"return": null}`, `[]`, `{"QMP": null}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		if err == nil && m.kind == 0 {
			t.Errorf("no kind: %q", line)
		}
		if m.kind == kindError && len(m.err.Error()) > 8<<10 {
			t.Errorf("error of %d bytes", len(m.err.Error()))
		}
	})
}
