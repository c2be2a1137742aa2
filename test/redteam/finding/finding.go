// Package finding is what the red team's probe is told and what it reports. It is shared by the probe, which runs
// inside a guest, and by the tests outside, which know what has really arrived.
package finding

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
)

// Plan tells a probe where to try. It is JSON.
type Plan struct {
	// Nonce tells one run from another. What the probe sends carries a mark derived from it, never the nonce itself, so
	// that the plan on its way into the guest is not taken for an escape.
	Nonce string `json:"nonce"`
	// Interface is the guest's only one.
	Interface string     `json:"interface"`
	GuestMAC  string     `json:"guest_mac"`
	HostMAC   string     `json:"host_mac"`
	GuestAddr netip.Addr `json:"guest_addr"`
	HostAddr  netip.Addr `json:"host_addr"`
	AgentPort uint16     `json:"agent_port"`
	// Internet and Metadata stand for the world: documentation ranges and the addresses of cloud metadata services.
	Internet  []netip.Addr `json:"internet"`
	Metadata  []netip.Addr `json:"metadata"`
	Internet6 []netip.Addr `json:"internet6"`
	// Hosts are all addresses of the host; Open are ports on which something listens there, Closed some on which
	// nothing does.
	Hosts  []netip.Addr `json:"hosts"`
	Hosts6 []netip.Addr `json:"hosts6"`
	Open   []uint16     `json:"open"`
	Closed []uint16     `json:"closed"`
}

// Outcome is what the probe itself saw of an attempt.
type Outcome string

// The outcomes. Only Answered is a way out by itself; Sent may be one, which only the other side can tell.
const (
	Answered Outcome = "answered" // somebody outside answered
	Refused  Outcome = "refused"  // a reset or an ICMP error came back
	Silent   Outcome = "silent"   // nothing came back
	Sent     Outcome = "sent"     // nothing is expected back
	Failed   Outcome = "failed"   // the attempt could not be made: it proves nothing
)

// Finding is one line of a probe's report.
type Finding struct {
	Seq       int     `json:"seq"`
	Technique string  `json:"technique"`
	Target    string  `json:"target"`
	Outcome   Outcome `json:"outcome"`
	Evidence  string  `json:"evidence,omitempty"`
}

// Mark is what the packets of attempt number seq carry.
func (p Plan) Mark(seq int) string { return fmt.Sprintf("%s%05d;", p.markPrefix(), seq) }

func (p Plan) markPrefix() string {
	sum := sha256.Sum256([]byte(p.Nonce))
	return "redteam:" + hex.EncodeToString(sum[:6]) + ":"
}

// Marks returns a function that finds the attempts whose marks are in a packet.
func (p Plan) Marks() func(packet []byte) []int {
	pattern := regexp.MustCompile(regexp.QuoteMeta(p.markPrefix()) + `(\d{5});`)
	return func(packet []byte) []int {
		var seqs []int
		for _, m := range pattern.FindAllSubmatch(packet, -1) {
			if n, err := strconv.Atoi(string(m[1])); err == nil {
				seqs = append(seqs, n)
			}
		}
		return seqs
	}
}
