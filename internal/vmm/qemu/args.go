package qemu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/space-sandbox/space/internal/vmm"
)

// consoleBytes is the size of the console's ring, a power of two.
const consoleBytes = 64 << 10

// ownKernelArgs is this machine type's part of the kernel's command line: there is no PCI bus, and only a triple fault
// resets it. The self-tests of the kernel's ciphers take an eighth of an emulated boot.
const ownKernelArgs = "pci=off reboot=t cryptomgr.notests"

// descriptors are the numbers under which QEMU has its files; 0 stands for none.
type descriptors struct {
	kernel, initrd, ram, disk, tap, qmp int
}

// buildArgs is the command line. Nothing in it comes from a tenant or a guest.
func buildArgs(spec vmm.Spec, fd descriptors, kvm, direct bool, tscKHz uint64) []string {
	args := []string{
		"-name", "guest=space-" + string(spec.ID),
		"-M", "microvm,pit=on,pic=on,rtc=on,memory-backend=ram",
		"-m", strconv.Itoa(spec.MemoryMiB) + "M",
		"-smp", strconv.Itoa(spec.VCPUs),
		"-nodefaults", "-no-user-config", "-display", "none",
		// A guest that ends leaves QEMU stopped, with its console, until the driver has read it.
		"-action", "reboot=shutdown,shutdown=pause,panic=pause",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=on", spec.MemoryMiB, fdPath(fd.ram)),
		"-kernel", fdPath(fd.kernel),
		"-initrd", fdPath(fd.initrd),
		"-append", strings.Join(strings.Fields(spec.KernelArgs+" "+clockArgs(kvm, tscKHz)+" "+ownKernelArgs), " "),
		"-chardev", fmt.Sprintf("ringbuf,id=console,size=%d", consoleBytes), "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=off", fd.qmp), "-mon", "chardev=qmp,mode=control",
		"-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng",
	}
	args = append(args, accelArgs(kvm)...)
	if fd.disk != 0 {
		args = append(args, diskArgs(fd.disk, direct)...)
	}
	if fd.tap != 0 {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net,fd=%d,vhost=off", fd.tap),
			"-device", "virtio-net-device,netdev=net,mac="+spec.GuestMAC)
	}
	return args
}

// accelArgs: one thread for each vCPU, also for a single one, which is measured to be as fast as sharing QEMU's own.
func accelArgs(kvm bool) []string {
	if kvm {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", fmt.Sprintf("tcg,thread=multi,tb-size=%d", translationMiB), "-cpu", "max"}
}

// diskArgs: the image is locked by nobody (it is the machine's alone), the host's page cache is left out where the
// file system allows it, and a failed write stops the guest instead of reaching it.
func diskArgs(fd int, direct bool) []string {
	file := fmt.Sprintf("driver=file,node-name=file,filename=/dev/fdset/%d,locking=off,aio=threads,discard=unmap,cache.direct=%s",
		diskSet, onOff(direct))
	return []string{
		"-add-fd", fmt.Sprintf("fd=%d,set=%d", fd, diskSet),
		"-blockdev", file,
		"-blockdev", "driver=raw,node-name=disk,file=file,discard=unmap,cache.direct=" + onOff(direct),
		"-device", "virtio-blk-device,drive=disk,werror=stop,rerror=stop",
	}
}

const diskSet = 1

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
