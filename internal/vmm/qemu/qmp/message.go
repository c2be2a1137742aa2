package qmp

import (
	"encoding/json"
	"errors"
	"fmt"
)

// MaxLine bounds one message from the VMM, in bytes.
const MaxLine = 64 << 10

// Error is what QEMU answers to a command that failed.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *Error) Error() string { return fmt.Sprintf("qmp: %s: %s", bounded(e.Class), bounded(e.Desc)) }

func bounded(s string) string { return fmt.Sprintf("%.512q", s) }

// Event is something that QEMU tells by itself.
type Event struct {
	Name string
	Data json.RawMessage // may be empty
}

// kind says what a message is; exactly one it can be.
type kind int

const (
	kindGreeting kind = iota + 1
	kindReturn
	kindError
	kindEvent
)

type message struct {
	kind   kind
	id     uint64 // of kindReturn and kindError; 0 when QEMU could not tell which command it was
	result json.RawMessage
	err    *Error
	event  Event
}

type wireMessage struct {
	Greeting *json.RawMessage `json:"QMP"`
	Return   json.RawMessage  `json:"return"`
	Error    *Error           `json:"error"`
	Event    *string          `json:"event"`
	Data     json.RawMessage  `json:"data"`
	ID       uint64           `json:"id"`
}

// parse decodes one line. The VMM may have been taken over: whatever it sends gives a message or an error.
func parse(line []byte) (message, error) {
	if len(line) > MaxLine {
		return message{}, errors.New("qmp: the message is too long")
	}
	var w wireMessage
	if err := json.Unmarshal(line, &w); err != nil {
		return message{}, fmt.Errorf("qmp: %w", err)
	}
	m, forms := message{id: w.ID}, 0
	if w.Greeting != nil {
		m.kind, forms = kindGreeting, forms+1
	}
	if w.Return != nil {
		m.kind, m.result, forms = kindReturn, w.Return, forms+1
	}
	if w.Error != nil {
		m.kind, m.err, forms = kindError, w.Error, forms+1
	}
	if w.Event != nil {
		m.kind, m.event, forms = kindEvent, Event{Name: *w.Event, Data: w.Data}, forms+1
	}
	if forms != 1 {
		return message{}, errors.New("qmp: the message has no known form")
	}
	return m, nil
}
