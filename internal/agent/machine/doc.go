// Package machine is what the agent may do only as PID 1 of a real guest: load modules, take the root disk, make it
// the root, bring up the network, collect orphans, end the machine. Package agent does not import it, so the rest of
// the agent runs and is tested anywhere.
//
// The image is somebody else's: it may have no init, no shell, no /etc and no mount points. What is missing is made
// where the disk can be written; what the image has is left alone, except for the name server and the host's own name,
// which only the machine can know.
package machine
