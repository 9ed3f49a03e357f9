package conn

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// chmodUnfollowed sets the mode of a file, and does not follow a link. Kernels before 6.6 and old filters of system
// calls do not allow the call for this. Then it uses the path of a descriptor, as the C library does.
func chmodUnfollowed(path string, mode os.FileMode) error {
	err := unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return chmodOpened(path, mode)
	}
	return nil
}

func chmodOpened(path string, mode os.FileMode) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errNotTheSocket
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode.Perm())
}
