package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// owners say what the CPU was used for, by the innermost function on the stack that one of them stands for.
func owners() []struct{ prefix, name string } {
	const api, store, calls, http, log = "api: check, decode, encode", "store: SQLite and its driver", "calls to node and gateway", "http server", "log"
	return []struct{ prefix, name string }{
		{"log/slog.", log},
		{"modernc.org/", store}, {"database/sql.", store}, {"github.com/space-sandbox/space/internal/store/", store},
		{"connectrpc.com/", calls}, {"google.golang.org/protobuf/", calls}, {"net/http.(*http2", calls}, {"net/http/internal/http2.", calls},
		{"net/http.(*Transport).", calls}, {"net/http.(*Client).", calls}, {"github.com/space-sandbox/space/internal/rpc.", calls},
		{"github.com/danielgtaylor/huma/", api}, {"github.com/space-sandbox/space/internal/httpapi.", api},
		{"github.com/space-sandbox/space/internal/auth.", "authentication"},
		{"github.com/space-sandbox/space/internal/telemetry.", "traces and metrics"}, {"github.com/prometheus/", "traces and metrics"},
		{"github.com/space-sandbox/space/internal/", "control"},
		{"net/http.", http},
		{"runtime.gcBgMarkWorker", "garbage collector"}, {"runtime.bgsweep", "garbage collector"}, {"runtime.bgscavenge", "garbage collector"},
		{"runtime.mcall", "scheduler"}, {"runtime.mstart", "scheduler"}, {"runtime.", "scheduler"},
	}
}

// showProfile prints what the CPU of the measured process was used for and adds it to the figures, in percent.
func showProfile(w io.Writer, res *results) error {
	stacks, err := parseProfile(res.profile)
	if err != nil {
		return fmt.Errorf("CPU profile: %w", err)
	}
	var total int64
	used := map[string]int64{}
	for _, s := range stacks {
		total += s.value
		used[owner(s.functions)] += s.value
	}
	if total == 0 {
		return errors.New("CPU profile: it has no samples")
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return cmp.Compare(used[b], used[a]) })
	shares := map[string]float64{}
	fmt.Fprintln(w, "  CPU of control during these creates:")
	for _, name := range names {
		shares[name] = float64(used[name]) / float64(total) * 100
		fmt.Fprintf(w, "    %5.1f %%  %s\n", shares[name], name)
	}
	res.figures["control_cpu_percent_c50"] = shares
	return nil
}

func owner(functions []string) string {
	for _, f := range functions {
		if i := slices.IndexFunc(owners(), func(o struct{ prefix, name string }) bool {
			return o.prefix != "runtime." && strings.HasPrefix(f, o.prefix)
		}); i >= 0 {
			return owners()[i].name
		}
	}
	return "scheduler" // nothing but the runtime
}

// stack is one line of a profile: its functions, the innermost first, and the time it stands for.
type stack struct {
	functions []string
	value     int64
}

// parseProfile reads the form that runtime/pprof writes: profile.proto of github.com/google/pprof, compressed.
func parseProfile(data []byte) ([]stack, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	var samples [][]byte
	locations, functions := map[uint64][]uint64{}, map[uint64]uint64{} // to functions; to the index of the name
	var text []string
	err = fields(raw, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 2:
			samples = append(samples, b)
		case 4:
			return parseLocation(b, locations)
		case 5:
			var id, name uint64
			err := fields(b, func(n protowire.Number, v uint64, _ []byte) error {
				switch n {
				case 1:
					id = v
				case 2:
					name = v
				}
				return nil
			})
			functions[id] = name
			return err
		case 6:
			text = append(text, string(b))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []stack
	for _, b := range samples {
		s, err := parseSample(b, func(location uint64) (names []string) {
			for _, f := range locations[location] {
				if i := functions[f]; i < uint64(len(text)) {
					names = append(names, text[i])
				}
			}
			return names
		})
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// parseLocation reads the functions of one place in the program: several when calls were inlined.
func parseLocation(b []byte, into map[uint64][]uint64) error {
	var id uint64
	var lines []uint64
	err := fields(b, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 1:
			id = v
		case 4:
			return fields(b, func(n protowire.Number, v uint64, _ []byte) error {
				if n == 1 {
					lines = append(lines, v)
				}
				return nil
			})
		}
		return nil
	})
	into[id] = lines
	return err
}

// parseSample reads one stack. Its last value is nanoseconds.
func parseSample(b []byte, names func(location uint64) []string) (stack, error) {
	var s stack
	err := fields(b, func(n protowire.Number, v uint64, b []byte) error {
		list := []uint64{v}
		if b != nil {
			list = nil
			for len(b) > 0 {
				v, size := protowire.ConsumeVarint(b)
				if size < 0 {
					return protowire.ParseError(size)
				}
				list, b = append(list, v), b[size:]
			}
		}
		switch n {
		case 1:
			for _, l := range list {
				s.functions = append(s.functions, names(l)...)
			}
		case 2:
			s.value = int64(list[len(list)-1])
		}
		return nil
	})
	return s, err
}

// fields calls do for each field of a message: with its number as v, or with its bytes as b, which are not nil then.
func fields(raw []byte, do func(n protowire.Number, v uint64, b []byte) error) error {
	for len(raw) > 0 {
		number, kind, size := protowire.ConsumeTag(raw)
		if size < 0 {
			return protowire.ParseError(size)
		}
		raw = raw[size:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(raw)
		case protowire.BytesType:
			b, size = protowire.ConsumeBytes(raw)
			b = append([]byte{}, b...)
		default:
			size = protowire.ConsumeFieldValue(number, kind, raw)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		if err := do(number, v, b); err != nil {
			return err
		}
		raw = raw[size:]
	}
	return nil
}
