package conn

import "golang.org/x/sys/unix"

// pollEvents are the events of poll(2) after which a connection may have closed. gVisor, by its source, has
// no RDHUP.
const pollEvents = unix.POLLIN | unix.POLLRDHUP

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
