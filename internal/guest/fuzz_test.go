package guest

import (
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

const fuzzID = "proc_aaaaaaaaaaaaaaaaaaaa"

func encode(f *testing.F, m proto.Message) []byte {
	f.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// checkClean fails when a message holds what must not get further: unknown fields, long or broken text.
func checkClean(t *testing.T, m protoreflect.Message) {
	t.Helper()
	if len(m.GetUnknown()) > 0 {
		t.Fatalf("unknown fields in %v", m.Interface())
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Kind() == protoreflect.MessageKind && !fd.IsList():
			checkClean(t, v.Message())
		case fd.Kind() == protoreflect.StringKind && !fd.IsList():
			if s := v.String(); len(s) > maxText || !utf8.ValidString(s) {
				t.Fatalf("field %s: %q", fd.Name(), s)
			}
		}
		return true
	})
}

// FuzzProcess feeds answers about a process to the check.
func FuzzProcess(f *testing.F) {
	f.Add(encode(f, &agentv1.Process{ProcessId: fuzzID, State: agentv1.ProcessState_PROCESS_STATE_RUNNING, Pid: 1, StartedAt: timestamppb.Now()}))
	f.Add(encode(f, &agentv1.Process{ProcessId: fuzzID, State: agentv1.ProcessState_PROCESS_STATE_EXITED, Pid: 1, ExitCode: -1, Signal: "SIGKILL",
		ErrorCode: "deadline_exceeded", ErrorMessage: "x\x1b", StdoutBytes: 5, TruncatedBytes: 2}))
	f.Add(encode(f, &agentv1.Process{ProcessId: fuzzID, State: agentv1.ProcessState_PROCESS_STATE_FAILED, ErrorCode: "start_failed"}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p agentv1.Process
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		got, err := checkProcess(&p, fuzzID)
		if err != nil {
			return
		}
		checkClean(t, got.ProtoReflect())
		if again, err := checkProcess(got, fuzzID); err != nil || !proto.Equal(got, again) {
			t.Fatalf("what passed once does not pass again: %v, %v", got, err)
		}
	})
}

// FuzzAttach feeds a sequence of events to the state of an attach stream. Each is a length byte and a message.
func FuzzAttach(f *testing.F) {
	add := func(events ...*agentv1.AttachResponse) {
		var raw []byte
		for _, e := range events {
			b := encode(f, e)
			raw = append(append(raw, byte(len(b))), b...)
		}
		f.Add(raw, true, uint64(0), false)
	}
	run := &agentv1.Process{ProcessId: fuzzID, State: agentv1.ProcessState_PROCESS_STATE_RUNNING, Pid: 1}
	end := &agentv1.Process{ProcessId: fuzzID, State: agentv1.ProcessState_PROCESS_STATE_EXITED, Pid: 1, StdoutBytes: 4}
	add(&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: run}},
		&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Data_{Data: &agentv1.AttachResponse_Data{Stream: 1, Data: []byte("ab")}}},
		&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap_{Gap: &agentv1.AttachResponse_Gap{Stream: 1, From: 2, To: 4}}},
		&agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exit{Exit: end}})
	f.Fuzz(func(t *testing.T, raw []byte, follow bool, offset uint64, fromEnd bool) {
		s, err := newAttachState(&agentv1.AttachRequest{ProcessId: fuzzID, Follow: follow,
			Positions: []*agentv1.StreamPosition{{Stream: 1, Offset: offset, End: fromEnd}}})
		if err != nil {
			t.Fatal(err)
		}
		next, known := offset, !fromEnd
		for i := 0; len(raw) > 0; i++ {
			n := min(int(raw[0]), len(raw)-1)
			var m agentv1.AttachResponse
			if proto.Unmarshal(raw[1:1+n], &m) != nil {
				return
			}
			raw = raw[1+n:]
			e, err := s.accept(&m)
			if err != nil {
				return
			}
			checkClean(t, e.ProtoReflect())
			if (e.GetStarted() != nil) != (i == 0) {
				t.Fatalf("event %d is %v", i, e)
			}
			from, to := e.GetData().GetOffset(), e.GetData().GetOffset()+uint64(len(e.GetData().GetData()))
			if g := e.GetGap(); g != nil {
				from, to = g.From, g.To
			}
			if e.GetData() != nil || e.GetGap() != nil {
				if known && from != next || to <= from {
					t.Fatalf("bytes %d to %d after %d", from, to, next)
				}
				next, known = to, true
			}
		}
	})
}

// FuzzRefusal feeds bodies of refused file requests.
func FuzzRefusal(f *testing.F) {
	f.Add(404, []byte(`{"code":"not_found","message":"m","cause":"c","remedy":"r"}`))
	f.Add(507, []byte(`{"code":"guest_disk_full","message":"\u001b"}`))
	f.Fuzz(func(t *testing.T, status int, raw []byte) {
		e := sandbox.AsError(refusal(status, raw))
		for _, s := range []string{e.Message, e.Cause, e.Remedy} {
			if len(s) > maxText || !utf8.ValidString(s) {
				t.Fatalf("text %q", s)
			}
		}
		if st := e.Code.Info().Status; !acceptedCode(e.Code) && st != 502 || acceptedCode(e.Code) && st != status {
			t.Fatalf("status %d became %s", status, e.Code)
		}
	})
}

// FuzzStored feeds answers to a stored file.
func FuzzStored(f *testing.F) {
	f.Add([]byte(`{"path":"/x","size_bytes":1,"sha256":"`+"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"+`"}`), int64(1))
	f.Fuzz(func(t *testing.T, raw []byte, length int64) {
		s, err := checkStored(raw, length)
		if err != nil {
			return
		}
		if length >= 0 && s.SizeBytes != length || len(s.SHA256) != 64 || len(s.Path) > maxPath || !utf8.ValidString(s.Path) {
			t.Fatalf("%+v of %d bytes", s, length)
		}
	})
}
