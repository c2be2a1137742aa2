package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/bench/rig"
)

// stages are the parts of a create in their order; together they are the whole.
func stages() []string {
	return []string{"request", "accept", "claim", "machine", "ready", "publish", "end"}
}

// about says what belongs to a stage.
func about(stage string) string {
	return map[string]string{
		"request": "send, route, authenticate, decode, validate, plan",
		"accept":  "commit of sandbox and operation; queue",
		"claim":   "commit of the claim; call to node on its way",
		"machine": "node's answer on its way; call to the gateway on its way",
		"ready":   "answer on its way; next call to the gateway on its way",
		"publish": "answer on its way",
		"end":     "commit of the end; wake the waiter, read, encode, answer",
	}[stage]
}

// split divides the time of one create by the times in its operation and those at which the fakes were called.
func split(sent, answered time.Time, op apiv1.Operation, at visit) (map[string]float64, error) {
	if op.StartedAt == nil || op.EndedAt == nil {
		return nil, fmt.Errorf("operation %s has no times", op.ID)
	}
	marks := []time.Time{sent, op.CreatedAt, *op.StartedAt, at.ensure, at.ready, at.publish, *op.EndedAt, answered}
	out := map[string]float64{"create": milliseconds(answered.Sub(sent))}
	for i, name := range stages() {
		out[name] = milliseconds(marks[i+1].Sub(marks[i]))
		if out[name] < 0 {
			return nil, fmt.Errorf("operation %s: stage %s took %.3f ms", op.ID, name, out[name])
		}
	}
	return out, nil
}

func show(level, n int, figures map[string]any, create map[string]rig.Figure) {
	suffix := fmt.Sprintf("_c%d", level)
	number := func(name string) float64 { f, _ := figures[name+suffix].(float64); return f }
	d, _ := figures["delete_ms"+suffix].(rig.Figure)
	c := create["create"]
	fmt.Fprintf(os.Stderr, "concurrency %d, %d sandboxes:\n", level, n)
	fmt.Fprintf(os.Stderr, "  creates %7.0f/s  p50 %6.1f  p95 %6.1f  p99 %6.1f ms  %.2f commits  %.2f ms CPU of control, %.2f of clients and fakes, each\n",
		number("creates_per_second"), c.P50, c.P95, c.P99, number("commits_per_create"), number("control_cpu_ms_per_create"),
		number("clients_and_fakes_cpu_ms_per_create"))
	fmt.Fprintf(os.Stderr, "  deletes %7.0f/s  p50 %6.1f  p95 %6.1f  p99 %6.1f ms  %.2f commits  %.2f ms CPU of control, %.2f of clients and fakes, each\n",
		number("deletes_per_second"), d.P50, d.P95, d.P99, number("commits_per_delete"), number("control_cpu_ms_per_delete"),
		number("clients_and_fakes_cpu_ms_per_delete"))
	fmt.Fprintf(os.Stderr, "  stages of a create, ms: p50, p95, p99\n")
	for _, s := range stages() {
		fmt.Fprintf(os.Stderr, "    %-8s %7.2f %7.2f %7.2f  %s\n", s, create[s].P50, create[s].P95, create[s].P99, about(s))
	}
}

// cpu returns the CPU seconds so far of the measured process and of this one.
func (r *controlRig) cpu() (server, own float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.server.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const utime, stime = 11, 12 // fields behind the name; in ticks of 10 ms
	for _, i := range []int{utime, stime} {
		ticks, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return 0, 0, err
		}
		server += ticks / 100
	}
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, 0, err
	}
	seconds := func(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return server, seconds(u.Utime) + seconds(u.Stime), nil
}
