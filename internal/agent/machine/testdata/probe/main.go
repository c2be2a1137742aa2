// Command probe is the only program in the image of the tests: it says what a guest looks like from inside and does
// what programs there might do.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("no command"))
	}
	commands := map[string]func(args []string) error{
		"report":  report,
		"connect": connect,
		"orphan":  orphan,
		"zombies": zombies,
		"kill1":   killInit,
		"eat":     eat,
		"bomb":    bomb,
		"stay":    stay,
		"exit":    exit,
	}
	run, ok := commands[os.Args[1]]
	if !ok {
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
	if err := run(os.Args[2:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// report prints, as JSON, the content of each named file, the target of each link, the names in each directory.
func report(paths []string) error {
	out := map[string]string{}
	for _, path := range paths {
		if target, err := os.Readlink(path); err == nil {
			out[path] = target
			continue
		}
		if entries, err := os.ReadDir(path); err == nil {
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			out[path] = strings.Join(names, " ")
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		out[path] = string(data)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs("/", &st); err != nil {
		return err
	}
	out["root bytes"] = strconv.FormatUint(st.Blocks*uint64(st.Bsize), 10)
	out["time"] = time.Now().UTC().Format(time.RFC3339)
	return json.NewEncoder(os.Stdout).Encode(out)
}

// connect tells how a TCP connection to each address ends. "from>to" binds the near end; "as from>to" first makes from
// an address of the loopback.
func connect(pairs []string) error {
	for _, pair := range pairs {
		dialer := net.Dialer{Timeout: time.Second}
		to := pair
		if from, rest, ok := strings.Cut(pair, ">"); ok {
			to = rest
			if spoofed, ok := strings.CutPrefix(from, "as "); ok {
				from = spoofed
				if err := setAlias(net.ParseIP(from)); err != nil {
					return err
				}
			}
			dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		conn, err := dialer.Dial("tcp", to)
		if err == nil {
			conn.Close()
		}
		fmt.Printf("%s: %v\n", pair, err)
		if strings.HasPrefix(pair, "as ") {
			if err := setAlias(net.IPv4zero); err != nil { // else nothing could be sent to the host any more
				return err
			}
		}
	}
	return nil
}

// setAlias gives the loopback a second address; the zero address takes it away.
func setAlias(ip net.IP) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	if err := request.SetInet4Addr(ip.To4()); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFADDR, request)
}

// orphan leaves processes without their parent, which end at once.
func orphan(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	for range n {
		if err := exec.Command("/probe", "exit", "0").Start(); err != nil {
			return err
		}
	}
	return nil
}

// zombies prints how many processes are dead and were not collected.
func zombies([]string) error {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	n := 0
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		if _, after, ok := strings.Cut(string(data), ") "); ok && strings.HasPrefix(after, "Z") {
			n++
		}
	}
	fmt.Println(n)
	return nil
}

// killInit sends every signal there is to PID 1.
func killInit([]string) error {
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		if err := syscall.Kill(1, sig); err != nil {
			return fmt.Errorf("signal %d: %w", sig, err)
		}
	}
	return nil
}

// eat takes memory until there is none.
func eat([]string) error {
	var all [][]byte
	for {
		b := make([]byte, 4<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
		if len(all) > 1<<20 {
			return fmt.Errorf("no end of memory")
		}
	}
}

// bomb forks until the kernel refuses, says how often that was, and stays, with all its children.
func bomb([]string) error {
	for n := 0; ; n++ {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			fmt.Println(n, errno)
			return stay(nil)
		}
		for pid == 0 { // a child of a program with threads may do nothing but system calls
			unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
		}
	}
}

// stay ignores requests to end.
func stay([]string) error {
	signal.Ignore(syscall.SIGTERM)
	fmt.Println("staying")
	for {
		time.Sleep(time.Hour)
	}
}

func exit(args []string) error {
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}
