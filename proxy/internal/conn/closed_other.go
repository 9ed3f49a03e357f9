//go:build !linux

package conn

import "golang.org/x/sys/unix"

// pollEvents are the events of poll(2) after which a connection may have closed.
const pollEvents = unix.POLLIN

// closedBehind always returns false, because this system has no POLLRDHUP.
func closedBehind(int) bool { return false }
