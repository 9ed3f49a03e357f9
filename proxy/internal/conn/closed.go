package conn

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// awaitClose sleeps until the connection closes, or its read deadline passes (false). It does not take
// bytes from the socket.
func awaitClose(raw syscall.RawConn) bool {
	closed := false
	err := raw.Read(func(fd uintptr) bool {
		closed = hasClosed(int(fd))
		return closed // if false, sleep until the poller reports a change
	})
	return closed || !errors.Is(err, os.ErrDeadlineExceeded)
}

// hasClosed reports whether the peer has closed or half-closed the socket.
func hasClosed(fd int) bool {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		case err != nil || n == 0:
			return true
		}
		return closedBehind(fd)
	}
}
