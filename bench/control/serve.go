package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/space-sandbox/space/internal/datadir"
	"github.com/space-sandbox/space/internal/part"
	"github.com/space-sandbox/space/internal/telemetry"
)

// dirOf is the installation that the measured process serves: what it needs of one.
func dirOf(root, run string) *datadir.Dir {
	return &datadir.Dir{Path: root, RunRoot: run, Installation: datadir.Installation{ID: "bench0",
		ControlUID: uint32(os.Getuid()), ControlGID: uint32(os.Getgid()), GatewayUID: uint32(os.Getuid()), GatewayGID: uint32(os.Getgid())}}
}

// serve is the measured process: control as space up starts it, with the same descriptors. Its standard input asks for
// CPU profiles.
func serve(ctx context.Context, where string) error {
	root, run, _ := strings.Cut(where, ":")
	ctx, err := part.Start(ctx, part.Control)
	if err != nil {
		return err
	}
	go answerProfiles(os.Stdin, os.Stdout)
	logger := slog.New(telemetry.LogHandler(slog.NewTextHandler(os.Stderr, nil))).With("process", part.Control)
	err = part.RunControl(ctx, part.ControlConfig{Dir: dirOf(root, run), DataURL: "http://127.0.0.1:1", Version: "bench", Logger: logger})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// answerProfiles begins a CPU profile with each odd line and answers each even one with it, in base64.
func answerProfiles(in io.Reader, out io.Writer) {
	var profile bytes.Buffer
	for on, lines := false, bufio.NewScanner(in); lines.Scan(); on = !on {
		if on {
			pprof.StopCPUProfile()
			fmt.Fprintln(out, base64.StdEncoding.EncodeToString(profile.Bytes()))
			profile.Reset()
			continue
		}
		verdict := "ok"
		if err := pprof.StartCPUProfile(&profile); err != nil {
			verdict = err.Error()
		}
		fmt.Fprintln(out, verdict)
	}
}

// server is the measured process as its parent sees it.
type server struct {
	cmd      *exec.Cmd
	lifeline *os.File // closed: it ends
	in       io.WriteCloser
	out      *bufio.Reader
	log      *os.File
}

// startServer starts the measured process on the listening socket api. Its log goes to a file beside the store, as up's
// goes to a file or a pipe.
func startServer(p *place, api *os.File) (_ *server, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, serveArg, p.root+":"+p.run)}
	end, lifeline, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	s.lifeline = lifeline
	defer func() {
		if err != nil {
			err = errors.Join(err, lifeline.Close())
		}
	}()
	if s.log, err = os.Create(filepath.Join(p.root, "log")); err != nil {
		return nil, err
	}
	s.cmd.ExtraFiles = []*os.File{end, api}
	s.cmd.Stderr = s.log
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	return s, s.cmd.Start()
}

// profile is a CPU profile of the process while do runs.
func (s *server) profile(do func() error) ([]byte, error) {
	if answer, err := s.ask(); err != nil || answer != "ok" {
		return nil, errors.Join(err, fmt.Errorf("no CPU profile: %s", answer))
	}
	err := do()
	text, askErr := s.ask()
	if err = errors.Join(err, askErr); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(text)
}

func (s *server) ask() (string, error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return "", err
	}
	line, err := s.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

// stop ends the process and says what it said when it did not end well.
func (s *server) stop() error {
	err := errors.Join(s.lifeline.Close(), s.in.Close(), s.cmd.Wait(), s.log.Close())
	if err != nil {
		text, readErr := os.ReadFile(s.log.Name())
		err = fmt.Errorf("the measured process: %w\n%s", errors.Join(err, readErr), text[max(0, len(text)-4096):])
	}
	return err
}
