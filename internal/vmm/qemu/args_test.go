package qemu

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/space-sandbox/space/internal/vmm"
)

func TestBuildArgs(t *testing.T) {
	t.Parallel()
	spec := vmm.Spec{ID: "abcdefghij0123456789", VCPUs: 2, MemoryMiB: 512, KernelArgs: "console=ttyS0 quiet", GuestMAC: "02:00:00:00:00:15"}
	fd := descriptors{kernel: 3, initrd: 4, ram: 5, disk: 6, tap: 7, qmp: 8}
	got := strings.Join(buildArgs(spec, fd, false, true, 2596148), "\n")
	want := strings.TrimSpace(`
-name
guest=space-abcdefghij0123456789
-M
microvm,pit=on,pic=on,rtc=on,memory-backend=ram
-m
512M
-smp
2
-nodefaults
-no-user-config
-display
none
-action
reboot=shutdown,shutdown=pause,panic=pause
-sandbox
on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny
-object
memory-backend-file,id=ram,size=512M,mem-path=/proc/self/fd/5,share=on
-kernel
/proc/self/fd/3
-initrd
/proc/self/fd/4
-append
console=ttyS0 quiet tsc_early_khz=2596148 tsc=reliable pci=off reboot=t cryptomgr.notests
-chardev
ringbuf,id=console,size=65536
-serial
chardev:console
-chardev
socket,id=qmp,fd=8,server=on,wait=off
-mon
chardev=qmp,mode=control
-object
rng-builtin,id=rng
-device
virtio-rng-device,rng=rng
-accel
tcg,thread=multi,tb-size=128
-cpu
max
-add-fd
fd=6,set=1
-blockdev
driver=file,node-name=file,filename=/dev/fdset/1,locking=off,aio=threads,discard=unmap,cache.direct=on
-blockdev
driver=raw,node-name=disk,file=file,discard=unmap,cache.direct=on
-device
virtio-blk-device,drive=disk,werror=stop,rerror=stop
-netdev
tap,id=net,fd=7,vhost=off
-device
virtio-net-device,netdev=net,mac=02:00:00:00:00:15
`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	kvm := buildArgs(spec, descriptors{kernel: 3, initrd: 4, ram: 5, qmp: 6}, true, false, 2596148)
	if i := slices.Index(kvm, "-accel"); i < 0 || kvm[i+1] != "kvm" || kvm[i+3] != "host" {
		t.Errorf("accelerator: %v", kvm)
	}
	if slices.Contains(kvm, "-blockdev") || slices.Contains(kvm, "-netdev") {
		t.Errorf("a machine without disk and network has one: %v", kvm)
	}
}
