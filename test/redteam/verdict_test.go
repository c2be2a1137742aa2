package redteam_test

import (
	"encoding/json"
	"testing"

	"github.com/space-sandbox/space/test/redteam/finding"
)

// summary is the last line of a run.
type summary struct {
	Techniques             int `json:"techniques"`
	Attempts               int `json:"attempts"`
	Successes              int `json:"successes"`
	PositiveControlsFailed int `json:"positive_controls_failed"`
	ReferenceBroken        int `json:"reference_broken"`
}

func (s summary) String() string {
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// wantAllBlocked fails for each attempt that got out, by what the probe saw or by what arrived, and for each that could
// not be made.
func wantAllBlocked(t *testing.T, findings []finding.Finding, arrived map[int]bool, strays []string) summary {
	t.Helper()
	s := count(findings)
	for _, f := range findings {
		switch {
		case f.Outcome == finding.Answered || arrived[f.Seq]:
			s.Successes++
			t.Errorf("a way out: %s %s: %s %s (arrived: %t)", f.Technique, f.Target, f.Outcome, f.Evidence, arrived[f.Seq])
		case f.Outcome == finding.Failed:
			t.Errorf("not attempted: %s %s: %s", f.Technique, f.Target, f.Evidence)
		}
	}
	for _, frame := range strays {
		s.Successes++
		t.Errorf("a frame of the guest on the host: %s", frame)
	}
	return s
}

// wantAllSucceed is the positive control: where nothing is in the way, each attempt must get through.
func wantAllSucceed(t *testing.T, findings []finding.Finding, arrived map[int]bool) summary {
	t.Helper()
	s := count(findings)
	for _, f := range findings {
		if f.Outcome != finding.Answered && !arrived[f.Seq] {
			s.PositiveControlsFailed++
			t.Errorf("the probe cannot do it where nothing is in the way: %s %s: %s %s", f.Technique, f.Target, f.Outcome, f.Evidence)
		}
	}
	return s
}

// wantSent makes sure that what the probe says it sent has really left the guest and come to the box.
func wantSent(t *testing.T, findings []finding.Finding, atTheBox map[int]bool) {
	t.Helper()
	for _, f := range findings {
		if f.Outcome == finding.Sent && !atTheBox[f.Seq] {
			t.Errorf("said to be sent, but never came to the box: %s %s", f.Technique, f.Target)
		}
	}
}

func count(findings []finding.Finding) summary {
	techniques := map[string]bool{}
	for _, f := range findings {
		techniques[f.Technique] = true
	}
	return summary{Techniques: len(techniques), Attempts: len(findings)}
}
