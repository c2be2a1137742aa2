package sandboxnet

import (
	"context"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Inventory is what one box consists of in the kernel.
type Inventory struct {
	// Name is the namespace's name on the host, unique on it.
	Name string
	// ID is the sandbox that the name stands for; "" when it is not one that a Manager gives.
	ID sandbox.ID
	// Mount is where the namespace is mounted.
	Mount string
	// Links are the interfaces in it but those that every namespace of this host has.
	Links []string
	// Tables are its packet filter tables, as "family name".
	Tables []string
}

// Inspector is a Manager whose boxes are objects of the kernel that can be looked at one by one.
type Inspector interface {
	Manager
	// Complete is what the box of a sandbox has when nothing is missing and nothing is too much.
	Complete(id sandbox.ID) (Inventory, error)
	// Inspect looks at every box of this installation, half-made ones and ones with odd names too. A box that vanishes
	// meanwhile is left out.
	Inspect(ctx context.Context) ([]Inventory, error)
	// MountPrefix begins the Mount of all boxes of this installation, and of no others.
	MountPrefix() string
	// RemoveLink and RemoveTable take one object out of a box. What is not there is fine.
	RemoveLink(ctx context.Context, id sandbox.ID, link string) error
	RemoveTable(ctx context.Context, id sandbox.ID, table string) error
}
