package httpapitest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/space-sandbox/space/internal/sandbox"
)

// Program is what a command of the Fake runs: it returns the exit code.
type Program func(p *Proc) int

// Programs returns the programs every Fake knows.
func Programs() map[string]Program {
	return map[string]Program{
		"echo":  func(p *Proc) int { p.Print(strings.Join(p.Args[1:], " ") + "\n"); return 0 },
		"warn":  func(p *Proc) int { p.Warn(strings.Join(p.Args[1:], " ") + "\n"); return 0 },
		"cat":   func(p *Proc) int { p.Print(string(p.ReadAll())); return 0 },
		"twice": func(p *Proc) int { all := string(p.ReadAll()); p.Print(all + all); return 0 },
		"env":   func(p *Proc) int { p.Print(p.Env[p.Args[1]] + "\n"); return 0 },
		"bytes": func(p *Proc) int {
			n, _ := strconv.Atoi(p.Args[1])
			p.Print(strings.Repeat("\xff", n))
			return 0
		},
		"exit": func(p *Proc) int { n, _ := strconv.Atoi(p.Args[1]); return n },
		// trap waits for a signal, says its name and ends with 7.
		"trap": func(p *Proc) int { p.Print("ready\n"); p.Print(<-p.Signals + "\n"); return 7 },
		// die waits for a signal and is ended by it.
		"die": func(p *Proc) int { p.Print("ready\n"); p.EndedBy = <-p.Signals; return -1 },
		// stubborn says that it heard a signal, and goes on until the server ends.
		"stubborn": func(p *Proc) int {
			p.Print("ready\n")
			for {
				select {
				case <-p.Signals:
					p.Print("heard\n")
				case <-p.p.done:
					return 0
				}
			}
		},
		// pieces says N pieces, each but the first after a Step.
		"pieces": func(p *Proc) int {
			n, _ := strconv.Atoi(p.Args[1])
			for i := range n {
				if i > 0 {
					select {
					case <-p.p.steps:
					case <-p.p.done:
						return 1
					}
				}
				p.Print(fmt.Sprintf("piece %d\n", i))
			}
			return 0
		},
		// lines says each line of its input, and ends with it.
		"lines": func(p *Proc) int {
			for {
				line, ok := p.ReadLine()
				if !ok {
					return 0
				}
				p.Print("got " + line)
			}
		},
	}
}

// Proc is one running Program.
type Proc struct {
	Args    []string
	Env     map[string]string
	Signals chan string
	EndedBy string // set it and return -1 to be ended by a signal

	p *process
}

// Print writes to standard output.
func (p *Proc) Print(s string) { p.p.write(&p.p.stdout, s) }

// Warn writes to standard error.
func (p *Proc) Warn(s string) { p.p.write(&p.p.stderr, s) }

// ReadAll reads standard input to its end.
func (p *Proc) ReadAll() []byte {
	var all []byte
	for {
		line, ok := p.ReadLine()
		if !ok {
			return all
		}
		all = append(all, line...)
	}
}

// ReadLine reads a line with its end, or what there is before the end of the input.
func (p *Proc) ReadLine() (string, bool) {
	pr := p.p
	pr.mu.Lock()
	defer pr.mu.Unlock()
	for {
		rest := pr.stdin[pr.stdinRead:]
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			pr.stdinRead += i + 1
			return string(rest[:i+1]), true
		}
		if pr.stdinEOF {
			pr.stdinRead = len(pr.stdin)
			return string(rest), len(rest) > 0
		}
		pr.wait()
	}
}

// process is a command session of the Fake.
type process struct {
	mu        sync.Mutex
	changed   chan struct{}
	cmd       sandbox.Command
	env       map[string]string
	stdout    []byte
	stderr    []byte
	stdin     []byte
	stdinRead int
	stdinEOF  bool
	signals   chan string
	steps     <-chan struct{}
	done      <-chan struct{} // closed at the end of the server
	now       func() time.Time
	sizes     []sandbox.TerminalSize
	onChange  func() // called without the lock
}

// wait gives the lock up until something changes.
func (p *process) wait() {
	changed := p.changed
	p.mu.Unlock()
	<-changed
	p.mu.Lock()
}

func (p *process) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *process) write(to *[]byte, s string) {
	p.mu.Lock()
	*to = append(*to, s...)
	p.notify()
	p.mu.Unlock()
	p.onChange()
}

func (p *process) snapshot() sandbox.Command {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.cmd
	c.StdoutBytes, c.StderrBytes, c.StdinBytes = uint64(len(p.stdout)), uint64(len(p.stderr)), uint64(len(p.stdin))
	return c
}

// start runs the program once; a program that does not exist makes the session failed.
func (p *process) start(programs map[string]Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd.State != sandbox.CommandCreated {
		return
	}
	program, ok := programs[p.cmd.Spec.Argv[0]]
	if !ok {
		p.cmd.State, p.cmd.ErrorCode, p.cmd.ErrorMessage = sandbox.CommandFailed, "command_not_found", p.cmd.Spec.Argv[0]+": not found"
		p.cmd.EndedAt = p.now()
		p.notify()
		go p.onChange()
		return
	}
	p.cmd.State, p.cmd.PID, p.cmd.StartedAt = sandbox.CommandRunning, 101, p.now()
	p.notify()
	go p.run(program)
}

func (p *process) run(program Program) {
	proc := &Proc{Args: p.cmd.Spec.Argv, Env: p.env, Signals: p.signals, p: p}
	code := program(proc)
	p.mu.Lock()
	p.cmd.State, p.cmd.ExitCode, p.cmd.Signal, p.cmd.EndedAt = sandbox.CommandExited, &code, proc.EndedBy, p.now()
	p.notify()
	p.mu.Unlock()
	p.onChange()
}

// cancel gives up a session that was not started.
func (p *process) cancel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd.State != sandbox.CommandCreated {
		return
	}
	p.cmd.State, p.cmd.ErrorCode, p.cmd.ErrorMessage = sandbox.CommandFailed, string(sandbox.CodeCanceled), "it was deleted before its start"
	p.cmd.EndedAt = p.now()
	p.notify()
}

func (p *process) input(data []byte, eof bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.cmd.State != sandbox.CommandRunning && p.cmd.State != sandbox.CommandCreated:
		return sandbox.Errorf(sandbox.CodeNotRunning, "the process is not running")
	case p.stdinEOF:
		return sandbox.Errorf(sandbox.CodeStdinClosed, "the process has no open standard input")
	}
	p.stdin = append(p.stdin, data...)
	p.stdinEOF = eof
	p.notify()
	return nil
}

func (p *process) resize(size sandbox.TerminalSize) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.cmd.Spec.PTY == nil:
		return sandbox.Errorf(sandbox.CodeInvalidState, "the process has no terminal")
	case p.cmd.State.Ended():
		return sandbox.Errorf(sandbox.CodeNotRunning, "the process is not running")
	}
	p.sizes = append(p.sizes, size)
	p.notify()
	return nil
}

func (p *process) signal(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd.State != sandbox.CommandRunning {
		return sandbox.Errorf(sandbox.CodeNotRunning, "the process is not running")
	}
	select {
	case p.signals <- name:
	default: // a program that does not look
	}
	return nil
}
