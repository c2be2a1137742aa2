package machine

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/space-sandbox/space/internal/agent"
)

// Machine changes the guest that this process is PID 1 of. Boot makes it. Safe for concurrent use.
type Machine struct {
	log   *slog.Logger
	group *os.File
}

var _ agent.Machine = (*Machine)(nil)

// SetHostname names the machine, in the kernel and in the files of the image that tell it.
func (m *Machine) SetHostname(name string) error {
	if err := setKernelHostname(name); err != nil {
		return err
	}
	if err := writeHostname("/etc", name); err != nil {
		m.log.Warn("the host name could not be written", "error", err) // a full or odd disk is the image's affair
	}
	return nil
}

func setKernelHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("host name %q: %w", name, err)
	}
	return nil
}

// SetClock steps the wall clock.
func (m *Machine) SetClock(now time.Time) error {
	ts, err := unix.TimeToTimespec(now)
	if err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	return nil
}

// Now is the wall clock.
func (m *Machine) Now() time.Time { return time.Now() }

// slewBelow is what is put right without a step: the kernel does that at half a millisecond a second.
const slewBelow = 200 * time.Millisecond

// adjOffsetSingleshot is ADJ_OFFSET_SINGLESHOT of adjtimex(2): move the clock by so many microseconds, slowly.
const adjOffsetSingleshot = 0x8001

// AdjustClock moves the wall clock: slowly when it is off by little, so that it does not go back, else in a step. What is
// left of an earlier slow move is forgotten.
func (m *Machine) AdjustClock(by time.Duration) error {
	if by.Abs() >= slewBelow {
		return m.SetClock(time.Now().Add(by))
	}
	if _, err := unix.Adjtimex(&unix.Timex{Modes: adjOffsetSingleshot, Offset: by.Microseconds()}); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	return nil
}

// The bounds of a seed, in bytes.
const (
	minSeed = 32
	maxSeed = 512
)

// AddEntropy credits seed to the kernel's pool in full: it comes from the host's own pool.
func (m *Machine) AddEntropy(seed []byte) error {
	if len(seed) < minSeed || len(seed) > maxSeed {
		return fmt.Errorf("entropy: %d bytes, want %d to %d", len(seed), minSeed, maxSeed)
	}
	random, err := os.OpenFile("/dev/random", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("entropy: %w", err)
	}
	defer random.Close()
	// struct rand_pool_info: number of bits, number of bytes, bytes
	info := binary.NativeEndian.AppendUint32(nil, uint32(len(seed)*8))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))
	info = append(info, seed...)
	if err := ioctlPointer(random, unix.RNDADDENTROPY, unsafe.Pointer(&info[0])); err != nil {
		return fmt.Errorf("entropy: %w", err)
	}
	return nil
}

// UserGroup is the descriptor of the cgroup of user processes, or -1 without one.
func (m *Machine) UserGroup() int {
	if m.group == nil {
		return -1
	}
	return int(m.group.Fd())
}

// sinceKernelStart is the time since the kernel began to count.
func sinceKernelStart() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
