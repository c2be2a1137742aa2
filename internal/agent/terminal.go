package agent

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	agentv1 "github.com/space-sandbox/space/api/proto/agent/v1"
)

const (
	// defaultTerm is the TERM of a process with a terminal whose specification has none: what clients of today show.
	defaultTerm = "xterm-256color"
	// terminalMode is what devpts gives: the user reads and writes, others may send messages through the group.
	terminalMode = 0o620
	maxTerminal  = 1<<16 - 1 // columns or rows, the kernel's own
)

// checkSize refuses a size that no terminal has.
func checkSize(field string, size *agentv1.TerminalSize) error {
	if size.GetCols() < 1 || size.GetCols() > maxTerminal || size.GetRows() < 1 || size.GetRows() > maxTerminal {
		return badField(field, fmt.Sprintf("must have 1 to %d cols and rows", maxTerminal))
	}
	return nil
}

// openTerminal makes a terminal that belongs to the user: the child's three streams are its one side, ours are two
// descriptors of the other, so that closing standard input does not end the output. On error nothing stays open.
func openTerminal(size *agentv1.TerminalSize, uid int) (p pipes, err error) {
	p.child = [3]int{-1, -1, -1}
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return p, fmt.Errorf("open a terminal: %w", err)
	}
	p.terminal = os.NewFile(uintptr(master), "terminal")
	defer func() {
		if err != nil {
			p.closeAll()
		}
	}()
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return p, fmt.Errorf("unlock the terminal: %w", err)
	}
	// By descriptor, not by name: what /dev/pts is in the guest is not ours to trust.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return p, fmt.Errorf("open the terminal's other side: %w", errno)
	}
	p.child[0] = int(peer)
	for i := 1; i < len(p.child); i++ {
		if p.child[i], err = unix.FcntlInt(peer, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return p, fmt.Errorf("duplicate the terminal: %w", err)
		}
	}
	if privileged() {
		if err := unix.Fchown(int(peer), uid, -1); err != nil {
			return p, fmt.Errorf("give the terminal to its user: %w", err)
		}
		if err := unix.Fchmod(int(peer), terminalMode); err != nil {
			return p, fmt.Errorf("give the terminal to its user: %w", err)
		}
	}
	if err := setSize(master, size); err != nil {
		return p, err
	}
	if err := speakUTF8(int(peer)); err != nil {
		return p, err
	}
	input, err := unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return p, fmt.Errorf("duplicate the terminal: %w", err)
	}
	p.stdin = os.NewFile(uintptr(input), "terminal")
	return p, nil
}

// speakUTF8 lets the kernel's line editing erase whole characters.
func speakUTF8(fd int) error {
	settings, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		settings.Iflag |= unix.IUTF8
		err = unix.IoctlSetTermios(fd, unix.TCSETS, settings)
	}
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	return nil
}

// setSize tells the kernel a terminal's size; who is in its foreground gets SIGWINCH when it has changed.
func setSize(fd int, size *agentv1.TerminalSize) error {
	err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(size.GetCols()), Row: uint16(size.GetRows())})
	if err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	return nil
}

// control does something with an open file's descriptor, which stays non-blocking.
func control(f *os.File, do func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var derr error
	if err := rc.Control(func(fd uintptr) { derr = do(int(fd)) }); err != nil {
		return err
	}
	return derr
}

// endOfFile is what ends input on a terminal: a character, as its user has set it, nil when there is none. In the middle
// of a line it takes two, where there are lines.
func endOfFile(terminal *os.File, midLine bool) ([]byte, error) {
	var settings *unix.Termios
	err := control(terminal, func(fd int) (err error) {
		settings, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil {
		return nil, err
	}
	switch c := settings.Cc[unix.VEOF]; {
	case c == 0:
		return nil, nil
	case midLine && settings.Lflag&unix.ICANON != 0:
		return []byte{c, c}, nil
	default:
		return []byte{c}, nil
	}
}
