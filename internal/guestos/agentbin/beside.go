//go:build !embedagent

package agentbin

import (
	"fmt"
	"os"
	"path/filepath"
)

// Open returns the file space-agent beside the running program.
func Open() ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("guest agent: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(self), "space-agent"))
	if err != nil {
		return nil, fmt.Errorf("guest agent: this program was built without it and none lies beside it: %w", err)
	}
	return data, nil
}
