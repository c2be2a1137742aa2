//go:build realvm

package e2e

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// TestLifetime: a sandbox with a lease goes by itself, and its whole life can be followed over a restart of control and
// read again from the record.
func TestLifetime(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	beginning := int64(0)
	stream, err := i.client.Events(t.Context(), client.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	start := stream.LastID()
	box := i.create(apiv1.CreateSandbox{Template: "mini", Name: "short", Lease: &apiv1.CreateLease{TTLSeconds: 60}})
	if box.Lease == nil || box.Lease.ExpiresAt == nil || box.Lease.ExpiresAt.Sub(*box.ReadyAt).Round(time.Second) != time.Minute {
		t.Errorf("the lease is %+v, ready at %s", box.Lease, box.ReadyAt)
	}
	i.sh(box.ID, "true")
	i.killPart("control")
	i.eventually(readyTimeout, "the API answers again", func() bool {
		_, err := i.client.Sandbox(t.Context(), box.ID)
		return err == nil
	})
	shorter, err := i.client.SetLease(t.Context(), box.ID, apiv1.PatchLease{TTLSeconds: 5})
	if err != nil {
		t.Fatal(err)
	}
	var told []apiv1.Event
	for len(told) == 0 || !ends(told[len(told)-1], box.ID) {
		e, err := stream.Next()
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, e)
	}
	if late := told[len(told)-1].Time.Sub(*shorter.Lease.ExpiresAt); late < 0 || late > 10*time.Second {
		t.Errorf("it went %s after the end of its lease", late)
	}
	for n, e := range told {
		if e.Seq != start+int64(n)+1 {
			t.Fatalf("event %d comes in place %d", e.Seq, start+int64(n)+1)
		}
	}
	want := []string{"sandbox running", "operation create succeeded", "command exited", "lease set", "lease expired", "operation delete succeeded"}
	if got := brief(told); !inOrder(got, want) {
		t.Errorf("the events are %v, want in this order %v", got, want)
	}
	again, err := i.client.Events(t.Context(), client.EventQuery{Sandbox: box.ID, Types: []string{"lease"}, Since: &beginning})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, want := range []string{"lease set", "lease expired"} {
		if e, err := again.Next(); err != nil || brief([]apiv1.Event{e})[0] != want {
			t.Errorf("read again: %+v, %v, want %s", e, err, want)
		}
	}
	ops, err := i.client.ListOperations(t.Context(), client.OperationQuery{Sandbox: box.ID})
	if err != nil || len(ops.Items) != 2 || ops.Items[0].Kind != "delete" || ops.Items[0].State != "succeeded" {
		t.Errorf("its operations: %+v, %v", ops, err)
	}
	if _, running := i.findVMM(box.ID); running {
		t.Error("its VMM runs")
	}
}

// TestLeasePauses: at the end of its lease a sandbox stands still, with all it had, and goes on with a new lease.
func TestLeasePauses(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	box := i.create(apiv1.CreateSandbox{Template: "mini", Lease: &apiv1.CreateLease{TTLSeconds: 60, OnExpiry: "pause"}})
	made, err := i.client.CreateCommand(t.Context(), box.ID, apiv1.CreateCommand{Argv: []string{"sh", "-c", "while sleep 0.1; do echo tick; done"}, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.client.SetLease(t.Context(), box.ID, apiv1.PatchLease{TTLSeconds: 5}); err != nil {
		t.Fatal(err)
	}
	now := func() *apiv1.Sandbox {
		t.Helper()
		got, err := i.client.Sandbox(t.Context(), box.ID)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	i.eventually(time.Minute, "it is paused", func() bool { return now().State == "paused" })
	if l := now().Lease; l == nil || l.ExpiresAt != nil || l.RemainingSeconds == nil || *l.RemainingSeconds != 0 {
		t.Errorf("paused with the lease %+v", l)
	}
	if _, err := i.client.SetLease(t.Context(), box.ID, apiv1.PatchLease{TTLSeconds: 600}); err != nil {
		t.Fatal(err)
	}
	if _, err := i.client.ResumeSandbox(t.Context(), box.ID, client.Wait(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := now(); got.State != "running" || got.Lease.ExpiresAt == nil || time.Until(*got.Lease.ExpiresAt) < 9*time.Minute {
		t.Errorf("resumed: %s, lease %+v", got.State, got.Lease)
	}
	if cmd, err := i.client.Command(t.Context(), made.ID); err != nil || cmd.State != "running" {
		t.Errorf("its command: %+v, %v", cmd, err)
	}
}

// ends reports whether an event is the end of a sandbox's delete.
func ends(e apiv1.Event, box string) bool {
	return e.SandboxID == box && slices.Equal(brief([]apiv1.Event{e}), []string{"operation delete succeeded"})
}

// brief tells events in a few words each.
func brief(list []apiv1.Event) (out []string) {
	for _, e := range list {
		var o struct{ Kind, State, Change string }
		text := e.Type
		if err := json.Unmarshal(e.Object, &o); err != nil {
			text += " " + err.Error()
		}
		for _, word := range []string{o.Kind, o.State, o.Change} {
			if word != "" {
				text += " " + word
			}
		}
		out = append(out, text)
	}
	return out
}

// inOrder reports whether all of want are in got, in this order.
func inOrder(got, want []string) bool {
	for _, w := range want {
		n := slices.Index(got, w)
		if n < 0 {
			return false
		}
		got = got[n+1:]
	}
	return true
}
