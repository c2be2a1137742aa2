package linuxnet

import "github.com/space-sandbox/space/internal/sandbox"

// Path is where the namespace of a sandbox is mounted.
func (m *Manager) Path(id sandbox.ID) string { return mountDir + "/" + m.prefix + string(id) }
