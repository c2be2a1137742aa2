// Package agentbin gives the space-agent binary that goes into every guest's initramfs. A release of space carries it
// inside (build tag embedagent, file made by make before); a plain go build looks for it beside the running program.
package agentbin
