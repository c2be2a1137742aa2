package qemu

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/space-sandbox/space/internal/vmm/qemu/qmp"
)

// A VMM that makes up events does not fill the host's log.
func TestEventsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	m := &Machine{log: slog.New(slog.NewTextHandler(&log, nil))}
	for i := range 10_000 {
		m.handle(nil, qmp.Event{Name: "STOP"})
		m.handle(nil, qmp.Event{Name: "BLOCK_IO_ERROR", Data: fmt.Appendf(nil, `{"n": %d, "text": "\x1b[2J"}`, i)})
	}
	if lines := bytes.Count(log.Bytes(), []byte("\n")); lines == 0 || lines > maxEventLines {
		t.Errorf("%d lines", lines)
	}
	if bytes.ContainsRune(log.Bytes(), 0x1b) {
		t.Error("an escape sequence reached the log")
	}
}
