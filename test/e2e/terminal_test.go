//go:build realvm

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	apiv1 "github.com/space-sandbox/space/api/v1"
	"github.com/space-sandbox/space/client"
)

// guestPrompt is what the shell in the sandbox is told to show: -e of shellLine.
const guestPrompt = "in(0)>"

// shellLine begins a shell in the sandbox whose prompt shows the code of what ran last.
const shellLine = "space shell desk -e 'PS1=in($?)> '"

// TestTerminal does at a real terminal what a person does there.
func TestTerminal(t *testing.T) {
	t.Parallel()
	i := install(t)
	i.start()
	i.create(apiv1.CreateSandbox{Name: "desk"})
	t.Run("each", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *installation){
			"shell":        testDeskShell,
			"modes":        testDeskModes,
			"exec":         testDeskExec,
			"attach":       testDeskAttach,
			"cp":           testDeskCopy,
			"first screen": testDeskFirstScreen,
			"example":      testDeskExample,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, i)
			})
		}
	})
}

// testDeskShell works in a shell of the sandbox.
func testDeskShell(t *testing.T, i *installation) {
	d := openDesk(t, i)
	d.begin(shellLine)
	d.last(guestPrompt)
	client := d.foreground("space")
	d.line("stty size | tr ' ' x; echo $TERM")
	d.shows("30x100\nscreen-256color\n")
	d.line(`printf '\342\202\254 \346\274\242\n'`)
	d.shows("\n€ 漢\n")
	d.line("echo \"→ grüße $((6*7))\"")
	d.shows("\n→ grüße 42\n")
	d.line(`printf '\033[38;5;196mred\033[48;5;21mblue\033[0m\n'`)
	d.until("256 colours", func(string) bool {
		return strings.Contains(d.colours(), "\x1b[38;5;196mred\x1b[48;5;21mblue")
	})
	d.resize(120, 40)
	d.line("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; stty size | tr ' ' x")
	d.shows("\n40x120\n")
	d.last(guestPrompt)
	d.line("sh -c 'echo be''gun; exec sleep 1000'")
	d.shows("\nbegun\n")
	d.key("C-c")
	d.last("in(130)>")
	d.line("echo re''ady; cat") // what is typed while the shell still edits its line is not echoed
	d.shows("\nready\n")
	d.line("here")
	d.shows("\nhere\nhere\n")
	d.key("C-z")
	d.shows("Stopped")
	d.until("a prompt", func(screen string) bool { return strings.HasPrefix(lastLine(screen), "in(") })
	d.line("fg")
	d.shows("fg\ncat\n") // or what is typed comes before the shell has said so
	d.line("again")
	d.shows("\nagain\nagain\n")
	d.key("C-d")
	d.last(guestPrompt)
	if now := d.foreground("space"); now != client {
		t.Errorf("the client was process %d and is %d", client, now)
	}
	d.line("exit 7")
	d.prompt(7)
}

// keepsModes is a script that runs a command and says afterwards whether the terminal is as it was. The outer shell
// would put it right by itself, a script's does not.
const keepsModes = `stty -a >before
"$@"
code=$?
stty -a >after
cmp before after && echo the terminal is as it was
exit $code
`

// testDeskModes ends a shell in every way there is.
func testDeskModes(t *testing.T, i *installation) {
	i.create(apiv1.CreateSandbox{Name: "doomed"})
	signal := func(s syscall.Signal) func(*desk) {
		return func(d *desk) {
			if err := syscall.Kill(d.foreground("space"), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	d := openDesk(t, i)
	if err := os.WriteFile(filepath.Join(d.dir, "keeps"), []byte(keepsModes), 0o600); err != nil {
		t.Fatal(err)
	}
	d.run("cd "+d.dir, 0)
	for _, end := range []struct {
		name, box string
		do        func(*desk)
		code      int
		said      string
	}{
		{"exit", "desk", func(d *desk) { d.line("exit 3") }, 3, ""},
		{"end of input", "desk", func(d *desk) { d.key("C-d") }, 0, ""},
		{"left", "desk", func(d *desk) { d.key("Enter"); d.text("~.") }, 0, "Come back with: space attach cmd_"},
		{"terminated", "desk", signal(syscall.SIGTERM), 143, "the command goes on: cmd_"},
		{"hung up", "desk", signal(syscall.SIGHUP), 129, "the command goes on: cmd_"},
		{"killed there", "desk", func(d *desk) { d.line("kill -9 $$") }, 137, ""},
		{"deleted", "doomed", func(*desk) { i.delete("doomed") }, 1, "space: "},
	} {
		d.begin("sh keeps space shell " + end.box + " -e 'PS1=in($?)> '")
		d.last(guestPrompt)
		if modes := d.modes(); !strings.Contains(modes, "-icanon") || !strings.Contains(modes, "-isig") {
			t.Errorf("%s: the terminal is not raw: %s", end.name, modes)
		}
		end.do(d)
		if screen := d.prompt(end.code); !strings.Contains(screen, "the terminal is as it was") || !strings.Contains(screen, end.said) {
			t.Errorf("%s: %s", end.name, screen)
		}
	}
	d.begin("sh keeps space shell desk -- no-such-program")
	if screen := d.prompt(127); !strings.Contains(screen, "the terminal is as it was") {
		t.Errorf("no such program: %s", screen)
	}
}

// testDeskExec runs commands with a terminal, and without one.
func testDeskExec(t *testing.T, i *installation) {
	d := openDesk(t, i)
	d.begin(`space exec -t desk -- sh -c 'tty | cut -c1-8; stty size | tr " " x; read line; echo "<$line>"; exit 6'`)
	d.shows("\n/dev/pts\n30x100\n")
	d.line("tÿped")
	d.shows("\n<tÿped>\n")
	d.prompt(6)
	d.begin(`space exec desk -- sh -c 'tty; echo be""gun; exec sleep 1000'`)
	d.shows("\nnot a tty\nbegun\n")
	d.key("C-c")
	d.prompt(130)
}

var commandID = regexp.MustCompile(`cmd_[a-z0-9]+`)

// testDeskAttach leaves a shell, comes back to it from another terminal and takes it over.
func testDeskAttach(t *testing.T, i *installation) {
	first, second := openDesk(t, i), openDesk(t, i)
	first.begin(shellLine)
	first.last(guestPrompt)
	first.line("word=magic")
	first.last(guestPrompt)
	first.key("Enter")
	first.text("~.")
	id := commandID.FindString(first.prompt(0))
	second.resize(90, 25)
	second.begin("space attach " + id)
	second.shows("word=magic") // shown again
	second.last(guestPrompt)
	second.line("until [ \"$(stty size)\" = '25 90' ]; do sleep 0.1; done; echo the $word word")
	second.shows("\nthe magic word\n")
	first.begin("space attach --takeover " + id)
	first.shows("the magic word")
	second.prompt(1)
	second.shows("another client took the session over")
	first.last(guestPrompt)
	first.line("exit 4")
	first.prompt(4)
	if screen := first.run("space logs "+id+" | tail -n 2", 0); !strings.Contains(screen, "exit 4") {
		t.Errorf("logs: %s", screen)
	}
}

// bigFile takes seconds to copy into an emulated machine.
const bigFile = 48 << 20

// testDeskCopy watches copies under way, and ends some in the middle.
func testDeskCopy(t *testing.T, i *installation) {
	d := openDesk(t, i)
	d.run("cd "+d.dir, 0)
	f, err := os.Create(filepath.Join(d.dir, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(bigFile); err != nil {
		t.Fatal(err)
	}
	under := regexp.MustCompile(`(?m)^big: [0-9.]+ of 48\.0 MiB, [0-9]+ %$`)
	shown := func(screen string) bool { return under.MatchString(screen) }
	d.begin("space cp big desk:")
	d.until("progress", shown)
	d.key("C-c")
	if screen := d.prompt(130); strings.Contains(screen, "MiB") {
		t.Errorf("the progress is left on the screen: %s", screen)
	}
	d.until("and nothing is left in the sandbox", func(string) bool { return i.sh("desk", "ls -A") == "" })
	d.begin("space cp big desk:")
	d.until("progress", shown)
	if screen := d.prompt(0); strings.Contains(screen, "MiB") {
		t.Errorf("the progress is left on the screen: %s", screen)
	}
	if got := i.sh("desk", "stat -c %s big"); got != fmt.Sprintln(bigFile) {
		t.Errorf("in the sandbox are %q bytes", got)
	}
	d.run("mkdir back && cd back", 0)
	d.begin("space cp desk:big .")
	d.until("progress", shown)
	d.key("C-c")
	d.prompt(130)
	if screen := d.run("ls -A | wc -l", 0); !strings.Contains(screen, "\n0\n") {
		t.Errorf("left on this machine: %s", screen)
	}
	d.begin("space cp desk:big . && cmp big ../big && echo sa''me")
	d.until("progress", shown)
	d.shows("\nsame\n")
	d.prompt(0)
	i.sh("desk", "rm big")
}

// testDeskFirstScreen types space and nothing else.
func testDeskFirstScreen(t *testing.T, i *installation) {
	d := openDesk(t, i)
	screen := d.run("space", 0)
	for _, want := range []string{"isolated Linux machines", "It runs at " + i.url, "space create --template", "space --help"} {
		if !strings.Contains(screen, want) {
			t.Errorf("%q is not on the screen:\n%s", want, screen)
		}
	}
	for line := range strings.Lines(screen) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > deskCols {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	if screen = d.run("space --url http://127.0.0.1:1", 0); !strings.Contains(screen, "sudo space setup") {
		t.Errorf("without a server: %s", screen)
	}
}

// testDeskExample interrupts the example in the middle, and runs it again.
func testDeskExample(t *testing.T, i *installation) {
	d := openDesk(t, i, "SPACE_API_KEY="+i.key(t))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(d.dir, "first-sandbox"), "../../examples/first-sandbox")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	d.run("cd "+d.dir, 0)
	example := "./first-sandbox --template mini --dir run"
	d.begin(example)
	d.shows("\nstep 2 of 5")
	d.key("C-c")
	if screen := d.prompt(130); !strings.Contains(screen, "interrupted; run it again to go on") || strings.Contains(screen, "step 5") {
		t.Fatalf("interrupted: %s", screen)
	}
	d.begin(example)
	screen := d.shows("Keep the sandbox, pause it or delete it? [keep/pause/delete]")
	for _, want := range []string{"Going on with run ", "\nstep 5 of 5\n", "has ended with exit code 0"} {
		if !strings.Contains(screen, want) {
			t.Errorf("the second run does not say %q:\n%s", want, screen)
		}
	}
	if strings.Contains(screen, "step 1 of 5") || strings.Contains(screen, "is accepted") {
		t.Errorf("something is done, or shown, twice:\n%s", screen)
	}
	d.line("perhaps")
	d.until("the question again", func(screen string) bool {
		return strings.Count(screen, "Keep the sandbox, pause it or delete it?") == 2
	})
	d.line("delete")
	if screen := d.prompt(0); !strings.Contains(screen, "The sandbox is deleted") {
		t.Errorf("the end: %s", screen)
	}
	said, err := os.ReadFile(filepath.Join(d.dir, "run", "stdout"))
	if err != nil || strings.Count(string(said), "step ") != 5 || !strings.HasSuffix(string(said), "step 4 of 5\nstep 5 of 5\n") {
		t.Errorf("remembered: %q, %v", said, err)
	}
	boxes, err := i.client.ListSandboxes(t.Context(), client.SandboxQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, box := range boxes.Items {
		if strings.HasPrefix(box.Name, "first-") {
			t.Errorf("the example's sandbox is left: %+v", box)
		}
	}
}

// key is the installation's first key.
func (i *installation) key(t *testing.T) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(i.dir, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(key))
}
