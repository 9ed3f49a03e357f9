//go:build !linux

package conn

import (
	"os"

	"golang.org/x/sys/unix"
)

// chmodUnfollowed sets the mode of a file, and does not follow a link.
func chmodUnfollowed(path string, mode os.FileMode) error {
	return unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
}
