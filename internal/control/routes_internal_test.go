package control

import (
	"testing"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
	"github.com/space-sandbox/space/internal/store"
)

// A sandbox may have had any number of sessions; its route, which is sent with each pause and resume, names those that its
// guest can still know.
func TestRouteNamesBoundedSessions(t *testing.T) {
	t.Parallel()
	c, id := watchWorld(t), sandbox.NewID()
	oldest := c.session(t, id)
	err := c.Store.Update(t.Context(), func(tx store.Tx) error {
		for i := range maxRouteSessions + 10 {
			cmd := sandbox.Command{ID: sandbox.NewCommandID(), SandboxID: id, ProcessID: sandbox.NewProcessID(),
				State: sandbox.CommandExited, CreatedAt: time.Unix(int64(1+i), 0)}
			if err := tx.InsertCommand(cmd); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	msg, err := c.message(t.Context(), id, route{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(msg.Sessions); n != maxRouteSessions+1 || msg.Sessions[0].CommandId != string(oldest.ID) {
		t.Errorf("%d sessions, first %v; want the open one and the newest %d", n, msg.Sessions[0], maxRouteSessions)
	}
}
