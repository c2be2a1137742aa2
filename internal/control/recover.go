package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	nodev1 "github.com/space-sandbox/space/api/proto/node/v1"
	"github.com/space-sandbox/space/internal/operation"
	"github.com/space-sandbox/space/internal/sandbox"
)

// reasonColdBoot is why a command is lost whose memory a new machine does not have.
const reasonColdBoot = "cold_boot"

// recover boots a machine of the next generation on the disk that the last one has left.
func (c *Control) recover(ctx context.Context, r *operation.Run, id sandbox.ID) (landing, error) {
	box, err := c.Store.Sandbox(ctx, id)
	if err != nil {
		return landing{}, storeError(err)
	}
	if err := c.turns.wait(ctx, r.Operation().ID, box.Owner); err != nil {
		return landing{}, err
	}
	var machine *nodev1.Machine
	err = r.Try(ctx, "machine", retry(c.node, c.Limits.CreateDeadline), func(ctx context.Context) (err error) {
		if box, err = c.Store.Sandbox(ctx, id); err != nil {
			return storeError(err)
		}
		machine, err = c.ensureMachine(ctx, r, box, true)
		return err
	})
	if err != nil {
		return landing{}, err
	}
	return landing{state: sandbox.StateRunning, machine: machine}, c.readySteps(ctx, r, box, c.Limits.ReadyDeadline)
}

// newAgentToken makes the secret that opens the agent of one machine.
func newAgentToken() string {
	var token [32]byte
	rand.Read(token[:]) // never fails (crypto/rand)
	return hex.EncodeToString(token[:])
}
