package control

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
	"github.com/space-sandbox/space/internal/sandbox"
)

// TestTimesOfAGuestStayInOrder: whatever a guest does with its clock, created ≤ started ≤ ended ≤ now.
func TestTimesOfAGuestStayInOrder(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := created.Add(time.Minute)
	at := func(s int) time.Time { return created.Add(time.Duration(s) * time.Second) }
	for _, tt := range []struct {
		name               string
		started, ended     time.Time
		wantStart, wantEnd time.Time
	}{
		{"right", at(10), at(20), at(10), at(20)},
		{"ahead", at(90), at(100), now, now},
		{"behind", at(-100), at(-90), created, at(10)},
		{"turned back", at(30), at(20), at(30), at(30)},
	} {
		c := &Control{Deps: Deps{Now: func() time.Time { return now }}}
		p := &agentv1.Process{State: agentv1.ProcessState_PROCESS_STATE_RUNNING, StartedAt: timestamppb.New(tt.started)}
		cmd, _ := c.advance(sandbox.Command{State: sandbox.CommandCreated, CreatedAt: created}, p)
		p.State, p.EndedAt = agentv1.ProcessState_PROCESS_STATE_EXITED, timestamppb.New(tt.ended)
		cmd, _ = c.advance(cmd, p)
		if !cmd.StartedAt.Equal(tt.wantStart) || !cmd.EndedAt.Equal(tt.wantEnd) {
			t.Errorf("%s: started %v, ended %v; want %v, %v", tt.name, cmd.StartedAt, cmd.EndedAt, tt.wantStart, tt.wantEnd)
		}
	}
}
