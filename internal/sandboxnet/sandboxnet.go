// Package sandboxnet is the network box of a sandbox: one namespace with one tap, no route, no other interface, and
// rules that let nothing out and nothing in but the gateway's connections to the agent.
//
// A Box exists from Create to Delete, also while no process is in it: its namespace is kept by a mount under
// /run/netns. Addresses and MACs are the same in every box (package guestnet). Rules are in place before the link is
// up and go away with the namespace, after the link.
package sandboxnet

import (
	"context"
	"os"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Manager makes and finds boxes of one installation. Safe for concurrent use.
type Manager interface {
	// Create makes the box of a sandbox; an existing one is removed first. On error nothing is left.
	Create(ctx context.Context, id sandbox.ID) (Box, error)
	// Open finds the box that an earlier process made.
	Open(ctx context.Context, id sandbox.ID) (Box, error)
	// Delete removes everything of a box; it succeeds when there is none.
	Delete(ctx context.Context, id sandbox.ID) error
	// List names the boxes of this installation that exist.
	List(ctx context.Context) ([]sandbox.ID, error)
}

// Box is the network of one sandbox. Safe for concurrent use.
type Box interface {
	// Tap opens the host's end of the guest's interface for a VMM. The caller closes it.
	Tap(ctx context.Context) (*os.File, error)
	// AgentSocket makes an unconnected, non-blocking TCP socket inside the namespace, which may be connected to
	// guestnet.AgentAddr and to nothing else. The caller closes it. The fake's is already connected.
	AgentSocket(ctx context.Context) (AgentSocket, error)
	// Close releases descriptors; the box stays.
	Close() error
}

// AgentSocket is a way to the agent of one guest.
type AgentSocket struct {
	File *os.File
	// Connected says that File needs no connect: only so with the fake.
	Connected bool
}
