//go:build !linux

package conn

import "golang.org/x/sys/unix"

// pollEvents are those of poll(2) after which a connection may have closed.
const pollEvents = unix.POLLIN

// hasClosed reports whether the peer has closed the socket. A close behind bytes
// that were sent ahead is not seen: there is no POLLRDHUP here.
func hasClosed(fd int) bool {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return false
		}
		return err != nil || n == 0
	}
}
