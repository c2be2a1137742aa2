package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/sandbox"
)

const (
	// heartbeat is how often a stream of events without events says that it is there.
	heartbeat = 15 * time.Second
	// maxEventStreams bounds how many clients follow events at once.
	maxEventStreams = 256
)

func (s *server) addEvents() {
	text := &huma.Schema{Type: huma.TypeString}
	s.raw(huma.Operation{
		OperationID: "follow-events", Method: http.MethodGet, Path: "/v1/events", Tags: []string{"Events"}, Summary: "Follow what changes",
		Description: "Server-sent events in the order in which the changes became durable; the id of each is its number, its type is the event's, its data an Event. " +
			"The stream begins with the present, or after Last-Event-ID. Events are kept for 24 hours, at most some 500 000: when some after Last-Event-ID are gone, the first event is gap (an EventGap). " +
			"Ids without an event say how far the stream is, also where nothing matches. The stream ends when the server restarts or the client does not read for a minute; connect again with the last id then.",
		Parameters: []*huma.Param{
			queryParam("sandbox_id", "Only what concerns this sandbox (id, or name of a live one)", false, text),
			queryParam("type", "Only these types, separated by commas: operation, sandbox, lease, command, template", false, text),
			queryParam("last_event_id", "The same as the header, for clients that cannot set one; 0: from the oldest on", false, &huma.Schema{Type: huma.TypeInteger, Format: "int64"}),
			{Name: "Last-Event-ID", In: "header", Description: "Id of the last event that was seen", Schema: &huma.Schema{Type: huma.TypeInteger, Format: "int64"}},
		},
		Responses: withResponse(http.StatusOK, "Events", map[string]*huma.MediaType{"text/event-stream": {Schema: text}}),
	}, s.events)
}

// events answers with a stream. A client that reads slowly gets its events from the record later; nothing is queued for it.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	filter, after, err := s.eventQuery(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if s.streams.Add(1) > maxEventStreams {
		s.streams.Add(-1)
		s.fail(w, r, &sandbox.Error{Code: sandbox.CodeCapacity, Message: "too many clients follow events",
			Cause: fmt.Sprintf("there are %d", maxEventStreams), Remedy: "share one stream, or try again later"})
		return
	}
	defer s.streams.Add(-1)
	page, missed, err := s.Control.ReadEvents(r.Context(), after, filter, 0)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for proxies in between
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	stream := eventStream{w: w, rc: http.NewResponseController(w)}
	for r.Context().Err() == nil {
		if after, err = stream.send(page, missed); err == nil {
			page, missed, err = s.Control.ReadEvents(r.Context(), after, filter, heartbeat)
		}
		if err != nil {
			return // the client has gone, or the server is going: it will connect again
		}
	}
}

// eventQuery reads what a client wants to follow. after is -1 for the present.
func (s *server) eventQuery(r *http.Request) (filter control.EventFilter, after int64, err error) {
	q := r.URL.Query()
	if ref := q.Get("sandbox_id"); ref != "" {
		if ref, err = sandboxRef(ref); err == nil {
			filter.SandboxID, err = s.Control.SandboxID(r.Context(), ref)
		}
		if err != nil {
			return filter, 0, err
		}
	}
	filter.Types, err = oneOf("type", q.Get("type"), control.EventOperation, control.EventSandbox, control.EventLease, control.EventCommand, control.EventTemplate)
	if err != nil {
		return filter, 0, err
	}
	text, field := r.Header.Get("Last-Event-ID"), "Last-Event-ID"
	if q.Has("last_event_id") {
		text, field = q.Get("last_event_id"), "last_event_id"
	}
	if text == "" {
		return filter, -1, nil
	}
	after, err = strconv.ParseInt(text, 10, 64)
	if err != nil || after < 0 {
		err = invalid(sandbox.FieldError{Field: field, Message: "must be the id of an event"})
	}
	return filter, after, err
}

// eventStream writes server-sent events.
type eventStream struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// send writes a page, and what tells the client that it is there, and returns where to go on.
func (e eventStream) send(page control.EventPage, missed bool) (int64, error) {
	if missed {
		next := page.Oldest - 1
		gap, err := json.Marshal(apiv1.EventGap{Oldest: page.Oldest})
		if err != nil {
			return next, err
		}
		return next, e.write(next, "event: gap\ndata: %s\n", gap)
	}
	for _, ev := range page.Events {
		data, err := json.Marshal(apiv1.Event{Seq: ev.Seq, Time: ev.Time, Type: string(ev.Type), SandboxID: string(ev.SandboxID),
			OperationID: string(ev.OperationID), Object: ev.Object})
		if err != nil {
			return page.Next, err
		}
		if err := e.write(ev.Seq, "event: %s\ndata: %s\n", ev.Type, data); err != nil {
			return page.Next, err
		}
	}
	if len(page.Events) > 0 {
		return page.Next, e.rc.Flush()
	}
	return page.Next, errors.Join(e.write(page.Next, ""), e.rc.Flush())
}

// write writes one event; one without data only moves the id on.
func (e eventStream) write(id int64, format string, args ...any) error {
	_, err := fmt.Fprintf(e.w, "id: %d\n"+format+"\n", append([]any{id}, args...)...)
	return err
}
