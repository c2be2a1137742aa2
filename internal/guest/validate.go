package guest

import (
	"math"
	"regexp"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// maxOffset is more than any process can write.
const maxOffset = 1 << 62

var signalPattern = regexp.MustCompile(`^SIG[A-Z0-9+-]{1,12}$`)

// checkProcess checks what an agent says about a process and rebuilds it from the known fields. want is the process
// that was asked for, "" for any.
func checkProcess(p *agentv1.Process, want sandbox.ProcessID) (*agentv1.Process, error) {
	if p == nil {
		return nil, faultf("no process in the answer")
	}
	id, err := sandbox.ParseProcessID(p.ProcessId)
	if err != nil || want != "" && id != want {
		return nil, faultf("process %.60q instead of %q", p.ProcessId, want)
	}
	out := &agentv1.Process{ProcessId: string(id), State: p.State, StdinClosed: p.StdinClosed,
		StdoutBytes: p.StdoutBytes, StderrBytes: p.StderrBytes, StdinBytes: p.StdinBytes, TruncatedBytes: p.TruncatedBytes,
		PtyBytes: p.PtyBytes}
	if max(p.StdoutBytes, p.StderrBytes, p.PtyBytes, p.StdinBytes) > maxOffset || p.TruncatedBytes > p.StdoutBytes+p.StderrBytes+p.PtyBytes {
		return nil, faultf("impossible byte counts of process %s", id)
	}
	if err := checkEnd(p, out); err != nil {
		return nil, err
	}
	if out.StartedAt, err = checkTime(p.StartedAt); err != nil {
		return nil, err
	}
	if out.EndedAt, err = checkTime(p.EndedAt); err != nil {
		return nil, err
	}
	return out, nil
}

// checkEnd checks what depends on the state.
func checkEnd(p, out *agentv1.Process) error {
	switch p.State {
	case agentv1.ProcessState_PROCESS_STATE_CREATED:
		return nil
	case agentv1.ProcessState_PROCESS_STATE_FAILED:
		return checkFailure(p, out)
	case agentv1.ProcessState_PROCESS_STATE_RUNNING, agentv1.ProcessState_PROCESS_STATE_EXITED:
	default:
		return faultf("process state %d", p.State)
	}
	if p.Pid <= 0 {
		return faultf("pid %d", p.Pid)
	}
	out.Pid = p.Pid
	if p.State == agentv1.ProcessState_PROCESS_STATE_RUNNING {
		return nil
	}
	out.ExitCode, out.Signal = p.ExitCode, p.Signal
	switch {
	case p.Signal != "" && (p.ExitCode != -1 || !signalPattern.MatchString(p.Signal)):
		return faultf("exit code %d with signal %.40q", p.ExitCode, p.Signal)
	case p.ExitCode < -1 || p.ExitCode > 255:
		return faultf("exit code %d", p.ExitCode)
	}
	switch p.ErrorCode {
	case "", string(sandbox.CodeDeadline):
		out.ErrorCode, out.ErrorMessage = p.ErrorCode, cleanText(p.ErrorMessage)
		return nil
	}
	return faultf("error code %.60q of a process that has exited", p.ErrorCode)
}

func checkFailure(p, out *agentv1.Process) error {
	switch p.ErrorCode {
	case "command_not_found", "cwd_not_found", "user_not_found", "permission_denied", "start_failed", string(sandbox.CodeCanceled),
		string(sandbox.CommandExpired):
		out.ErrorCode, out.ErrorMessage = p.ErrorCode, cleanText(p.ErrorMessage)
		return nil
	}
	return faultf("error code %.60q of a process that could not be started", p.ErrorCode)
}

// checkTime accepts what fits into a record; the guest's clock itself may be wrong.
func checkTime(t *timestamppb.Timestamp) (*timestamppb.Timestamp, error) {
	if t == nil {
		return nil, nil
	}
	if t.CheckValid() != nil || t.AsTime().Before(time.Unix(0, 0)) {
		return nil, faultf("impossible time")
	}
	return &timestamppb.Timestamp{Seconds: t.Seconds, Nanos: t.Nanos}, nil
}

var (
	versionPattern = regexp.MustCompile(`^[0-9A-Za-z.+_-]{0,64}$`)
	bootIDPattern  = regexp.MustCompile(`^[0-9a-f]{1,64}$`)
	stagePattern   = regexp.MustCompile(`^[0-9a-z._-]{1,40}$`)
)

const maxStages = 32

// checkHello checks the answer to Hello.
func checkHello(h *agentv1.HelloResponse) (*agentv1.HelloResponse, error) {
	if !versionPattern.MatchString(h.Version) || !bootIDPattern.MatchString(h.BootId) || len(h.Stages) > maxStages {
		return nil, faultf("hello with version %.60q, boot id %.60q, %d stages", h.Version, h.BootId, len(h.Stages))
	}
	out := &agentv1.HelloResponse{Version: h.Version, BootId: h.BootId}
	for _, s := range h.Stages {
		if !stagePattern.MatchString(s.GetName()) || math.IsNaN(s.Ms) || s.Ms < 0 || s.Ms > 1e9 {
			return nil, faultf("boot stage %.60q", s.GetName())
		}
		out.Stages = append(out.Stages, &agentv1.Stage{Name: s.Name, Ms: s.Ms})
	}
	return out, nil
}
