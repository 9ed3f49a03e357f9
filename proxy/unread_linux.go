package proxy

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// stillUnread tells whether the peer of a Unix socket has not read all that was
// written, and is still there. If not, the error is ECONNRESET when it closed
// with bytes unread. It leaves that error before it empties its queue, so the
// queue is looked at first.
func stillUnread(raw syscall.RawConn) (unread bool, err error) {
	failed := raw.Control(func(fd uintptr) {
		n, e := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		if unread = e == nil && n > 0; unread {
			return
		}
		if code, e := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); e == nil && code != 0 {
			err = syscall.Errno(code)
		}
	})
	if failed != nil {
		return false, failed // closed from outside
	}
	return unread, err
}
