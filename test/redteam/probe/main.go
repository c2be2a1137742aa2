// Command probe is the red team inside a guest: as root it tries every way out that it knows and prints one JSON line
// for each attempt. It needs nothing of the guest's user land. What has really left is told by the tests outside.
//
//	probe -plan plan.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/space-sandbox/space/test/redteam/finding"
)

func main() {
	path := flag.String("plan", "", "file with the plan (JSON)")
	flag.Parse()
	if err := run(*path, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	p := &prober{out: json.NewEncoder(out)}
	if err := json.Unmarshal(data, &p.plan); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	link, err := net.InterfaceByName(p.plan.Interface)
	if err != nil {
		return err
	}
	p.link = link
	if p.wire, err = openWire(link.Index); err != nil {
		return err
	}
	defer p.wire.close()
	// Those that change the guest's own network, or what others know of it, come last.
	for _, technique := range []func(){
		p.connects, p.datagrams, p.names, p.echoes, p.bigDatagrams, p.shouts, p.agentPort,
		p.protocols, p.options, p.fragments, p.sources, p.tags, p.etherTypes,
		p.segments, p.controlMessages, p.neighbours, p.loopbackTargets, p.ipv6Frames,
		p.onlinkRoute, p.otherAddress, p.ipv6Sockets, p.hardwareAddresses, p.arp, p.otherMAC,
	} {
		technique()
	}
	p.strangeAnswers()
	return p.err
}

// prober is one run.
type prober struct {
	plan finding.Plan
	link *net.Interface
	wire *wire

	mu  sync.Mutex
	seq int
	out *json.Encoder
	err error // of writing the report
}

// next numbers an attempt.
func (p *prober) next() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	return p.seq
}

func (p *prober) report(seq int, technique, target string, outcome finding.Outcome, evidence string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := finding.Finding{Seq: seq, Technique: technique, Target: target, Outcome: outcome, Evidence: evidence}
	if err := p.out.Encode(f); err != nil && p.err == nil {
		p.err = err
	}
}

// failed reports an attempt that could not be made.
func (p *prober) failed(technique string, err error) {
	p.report(p.next(), technique, "", finding.Failed, err.Error())
}
