// Command bare boots one machine with QEMU and nothing of SPACE, by the fastest sequence that we know, and prints how
// long each stage took: what SPACE's own times are measured against. Same kernel, initramfs, template, memory, disk and
// pool; it ends with the agent's first answer.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	hostAddr, guestMAC, hostMAC = "169.254.0.22/30", "02:00:00:00:00:15", "02:00:00:00:00:16"
	kernelArgs                  = "console=ttyS0 quiet panic=-1 tsc_early_khz=2100000 tsc=reliable no_timer_check random.trust_cpu=on " +
		"pci=off reboot=t cryptomgr.notests"
)

var (
	guestAddr = &unix.SockaddrInet4{Addr: [4]byte{169, 254, 0, 21}, Port: 1018}
	token     = strings.Repeat("bare", 8)

	kernel   = flag.String("kernel", "", "uncompressed kernel")
	initrd   = flag.String("initrd", "", "initramfs")
	template = flag.String("template", "", "root disk of the template")
	dir      = flag.String("dir", "", "directory on the pool, for the machine's files")
	memory   = flag.Int("memory", 512, "MiB")
	disk     = flag.Int("disk", 4096, "MiB")
	accel    = flag.String("accel", "tcg", "tcg or kvm")
)

func main() {
	flag.Parse()
	runtime.LockOSThread() // this thread alone moves into the machine's network namespace
	stages, err := boot()
	if err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(stages)); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

// boot returns milliseconds by stage.
func boot() (stages map[string]float64, err error) {
	stages = map[string]float64{}
	var begin, last time.Time
	done := func(stage string) {
		stages[stage], last = time.Since(last).Seconds()*1e3, time.Now()
	}
	work, err := os.MkdirTemp(*dir, "bare-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	begin, last = time.Now(), time.Now()
	root, diskErr := cloneDisk(filepath.Join(work, "disk"))
	initrd, err := machineInitrd() // the process ends soon: nothing needs closing
	if err = errors.Join(diskErr, err); err != nil {
		return nil, err
	}
	done("files_ms")
	tap, err := network()
	if err != nil {
		return nil, err
	}
	done("network_ms")
	cmd := exec.Command("qemu-system-x86_64", arguments()...)
	cmd.ExtraFiles = []*os.File{tap, root, initrd} // 3, 4, 5
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	done("start_ms")
	for time.Since(begin) < 2*time.Minute {
		if err = hello(); err == nil {
			done("agent_ms")
			stages["total_ms"] = time.Since(begin).Seconds() * 1e3
			return stages, nil
		}
	}
	return nil, fmt.Errorf("no answer from the agent: %w", err)
}

func arguments() []string {
	args := []string{"-M", "microvm,pit=on,pic=on,rtc=on", "-m", strconv.Itoa(*memory) + "M", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "null", "-no-reboot",
		"-kernel", *kernel, "-initrd", "/proc/self/fd/5", "-append", kernelArgs,
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng",
		"-add-fd", "fd=4,set=1", "-blockdev", "driver=file,node-name=file,filename=/dev/fdset/1,locking=off,cache.direct=on",
		"-blockdev", "driver=raw,node-name=disk,file=file,cache.direct=on", "-device", "virtio-blk-device,drive=disk",
		"-netdev", "tap,id=net,fd=3,vhost=off", "-device", "virtio-net-device,netdev=net,mac=" + guestMAC}
	if *accel == "kvm" {
		return append(args, "-accel", "kvm", "-cpu", "host")
	}
	return append(args, "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max")
}

// cloneDisk shares the template's blocks, or copies them where the file system cannot.
func cloneDisk(path string) (*os.File, error) {
	src, srcErr := os.Open(*template)
	dst, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err = errors.Join(srcErr, err); err != nil {
		return nil, err
	}
	if err = unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		_, err = io.Copy(dst, src)
	}
	return dst, errors.Join(err, dst.Truncate(int64(*disk)<<20))
}

// machineInitrd appends the machine's boot configuration to the initramfs.
func machineInitrd() (*os.File, error) {
	src, openErr := os.Open(*initrd)
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err = errors.Join(openErr, err); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "initrd")
	config := fmt.Sprintf(`{"token":%q,"sandbox_id":"bare"}`, token)
	_, copyErr := io.Copy(f, src) // by the kernel; the archive ends at a multiple of four
	var b bytes.Buffer
	for _, e := range [][2]string{{"space-boot.json", config}, {"TRAILER!!!", ""}} { // cpio, format "newc"
		fmt.Fprintf(&b, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
			1, 0o100400, 0, 0, 1, 0, len(e[1]), 0, 0, 0, 0, len(e[0])+1, 0, e[0])
		b.Write(make([]byte, -b.Len()&3))
		b.WriteString(e[1])
		b.Write(make([]byte, -b.Len()&3))
	}
	_, err = b.WriteTo(f)
	return f, errors.Join(copyErr, err)
}

// network moves this thread into a new namespace with a tap in it.
func network() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "tap")
	req, _ := unix.NewIfreq("tap0") // the name fits
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return f, err
	}
	link, err := netlink.LinkByName("tap0")
	if err != nil {
		return f, err
	}
	host, _ := net.ParseMAC(hostMAC) // constants
	guest, _ := net.ParseMAC(guestMAC)
	addr, _ := netlink.ParseAddr(hostAddr)
	// The neighbour is told: asking for it would cost up to a second.
	return f, errors.Join(netlink.LinkSetHardwareAddr(link, host), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link),
		netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: guestAddr.Addr[:], HardwareAddr: guest}))
}

// hello asks the agent once; a guest that is not there yet does not answer within 20 ms.
func hello() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	wait := func(event int16, ms int) { unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: event}}, ms) }
	unix.Connect(fd, guestAddr)
	wait(unix.POLLOUT, 20)
	if err := unix.Connect(fd, guestAddr); err != nil && err != unix.EISCONN {
		time.Sleep(2 * time.Millisecond) // a refusal comes at once
		return err
	}
	unix.Write(fd, []byte("POST /space.agent.v1.AgentService/Hello HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer "+token+
		"\r\nContent-Type: application/proto\r\nContent-Length: 0\r\n\r\n")) // an empty message
	wait(unix.POLLIN, 10_000)
	answer := make([]byte, 512)
	if n, err := unix.Read(fd, answer); err != nil || !bytes.HasPrefix(answer[:max(n, 0)], []byte("HTTP/1.1 200")) {
		return fmt.Errorf("answer %q: %w", answer[:max(n, 0)], err)
	}
	return nil
}
