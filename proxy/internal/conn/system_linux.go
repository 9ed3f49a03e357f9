package conn

import (
	"fmt"
	"math"
	"os"
	"syscall"
	"time"

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

// limitUnanswered ends a TCP connection if nothing comes from its peer for so long, neither to a write nor to a probe.
func limitUnanswered(raw syscall.RawConn, limit time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
	})
}

// hasUnread reports whether the peer of a Unix socket has not read all that was written.
func hasUnread(raw syscall.RawConn) (unread bool) {
	if raw == nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		unread = err == nil && n > 0
	})
	return unread
}

// silentFor is for how long nothing has come from a TCP peer. If it is not known, the connection is closed.
func silentFor(raw syscall.RawConn) time.Duration {
	silent := time.Duration(math.MaxInt64)
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			silent = time.Duration(min(info.Last_ack_recv, info.Last_data_recv)) * time.Millisecond
		}
	})
	return silent
}
