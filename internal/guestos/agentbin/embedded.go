//go:build embedagent

package agentbin

import _ "embed"

//go:embed space-agent
var binary []byte

// Open returns the agent that was built into this program. The caller must not change the bytes.
func Open() ([]byte, error) { return binary, nil }
