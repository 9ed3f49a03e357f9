package conn

import "golang.org/x/sys/unix"

// pollEvents are those of poll(2) after which a connection may have closed. gVisor, by its
// source, has no RDHUP.
const pollEvents = unix.POLLIN | unix.POLLRDHUP

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
		// Bytes sent ahead stand before the end. poll sees behind them, and the
		// poller, which is edge-triggered, wakes up for the close as well.
		return peerHungUp(fd)
	}
}

func peerHungUp(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err != nil || fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	}
}
