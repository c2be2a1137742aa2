package confine

import (
	"context"

	"golang.org/x/sys/unix"
)

// EndUID kills every process of a uid and returns when none runs. It is for processes that no control group holds
// together; the uid must not be anybody else's. Root and our own uid are refused.
func EndUID(ctx context.Context, uid uint32) error {
	if err := checkOthers(uid); err != nil {
		return err
	}
	return retry(ctx, func() (bool, error) {
		running := 0
		err := eachOf(uid, func(_, pidfd int) error {
			running++
			return signal(pidfd, unix.SIGKILL)
		})
		return running == 0, err
	})
}
