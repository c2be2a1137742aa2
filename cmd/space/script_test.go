package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/internal/control"
	"github.com/space-sandbox/space/internal/httpapi/httpapitest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"space": main, "status": status})
}

// status runs `status CODE PROGRAM ARG...` and fails unless the program ends with that code. It passes Ctrl-C on.
func status() {
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for s := range interrupts {
			_ = cmd.Process.Signal(s) // it may have ended already
		}
	}()
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || fmt.Sprint(cmd.ProcessState.ExitCode()) != os.Args[1] {
		fmt.Fprintf(os.Stderr, "status: %v (%v), want exit code %s\n", err, exit, os.Args[1])
		os.Exit(1)
	}
}

// patience bounds what a script waits for.
const patience = 30 * time.Second

// Each script runs against a server of its own: the real API handler over a control and a data plane in memory.
// Besides testscript's own commands there are:
//
//	finish               operations that run succeed
//	fail NAME            the machine of a sandbox ends
//	drop                 cut all attachments, as a gateway that is killed does
//	step                 let a program that waits for it go on
//	output PROGRAM TEXT  wait until a command has written this
//	created NAME         wait until there is a sandbox of this name
//	event TYPE OBJECT    something has changed in sandbox one
//	forget SEQ           events up to this one are not kept any more
//	restart              streams of events end
//	id VAR               set VAR to the last output, without its end of line
//	opid VAR             set VAR to the id of the operation in the last output
//
// and the program status (see above).
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			s := httpapitest.Serve(t)
			env.Values["server"] = s
			dir := filepath.Join(env.WorkDir, "data")
			env.Setenv("SPACE_URL", s.URL)
			env.Setenv("SPACE_DATA_DIR", dir)
			env.Setenv("DEVELOPER_KEY", httpapitest.DeveloperKey)
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "admin.key"), []byte(httpapitest.AdminKey+"\n"), 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"finish": command(func(_ context.Context, s *httpapitest.Server, _ []string) error { s.Finish(); return nil }),
			"fail":   command(func(_ context.Context, s *httpapitest.Server, args []string) error { s.Fail(args[0]); return nil }),
			"drop":   command(func(_ context.Context, s *httpapitest.Server, _ []string) error { s.DropAttachments(); return nil }),
			"step":   command(func(ctx context.Context, s *httpapitest.Server, _ []string) error { return s.Step(ctx) }),
			"output": command(func(ctx context.Context, s *httpapitest.Server, args []string) error {
				return s.AwaitOutput(ctx, args[0], args[1])
			}),
			"created": command(func(ctx context.Context, s *httpapitest.Server, args []string) error {
				return s.AwaitSandbox(ctx, args[0])
			}),
			"event": command(func(ctx context.Context, s *httpapitest.Server, args []string) error {
				id, err := s.SandboxID(ctx, "one")
				s.AddEvent(control.Event{Type: control.EventType(args[0]), SandboxID: id, Object: []byte(args[1])})
				return err
			}),
			"forget": command(func(_ context.Context, s *httpapitest.Server, args []string) error {
				seq, err := strconv.ParseInt(args[0], 10, 64)
				s.DropEvents(seq)
				return err
			}),
			"restart": command(func(_ context.Context, s *httpapitest.Server, _ []string) error { s.DropStreams(); return nil }),
			"id": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
			},
			"opid": setOperationID,
		},
	})
}

func command(do func(context.Context, *httpapitest.Server, []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ts.Check(do(ctx, ts.Value("server").(*httpapitest.Server), args))
	}
}

func setOperationID(ts *testscript.TestScript, _ bool, args []string) {
	var made apiv1.Lifecycle
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &made))
	ts.Setenv(args[0], made.Operation.ID)
}
