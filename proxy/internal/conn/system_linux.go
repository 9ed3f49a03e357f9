package conn

import (
	"fmt"
	"os"
	"syscall"

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

// closedBehind reports whether the peer has closed the socket after bytes that it sent ahead. The runtime's
// poller is edge-triggered, so it wakes for such a close as well.
func closedBehind(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err != nil || fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	}
}

// KnowsPeers: the system reports the peer of a Unix socket.
const KnowsPeers = true

func peerOf(raw syscall.RawConn) Peer {
	var p Peer
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = Peer{Known: true, UID: cred.Uid, PID: cred.Pid}
		}
	})
	return p
}
