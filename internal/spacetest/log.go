package spacetest

import (
	"bytes"
	"log/slog"
	"sync"

	"github.com/space-sandbox/space/internal/telemetry"
)

// logBuffer keeps what all parts log.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) logger(process string) *slog.Logger {
	return slog.New(telemetry.LogHandler(slog.NewTextHandler(l, nil))).With("process", process)
}

// Log is what the parts have logged so far, as space up would show it.
func (i *Installation) Log() string {
	i.log.mu.Lock()
	defer i.log.mu.Unlock()
	return i.log.buf.String()
}
