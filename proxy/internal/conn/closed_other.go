//go:build !linux

package conn

import "golang.org/x/sys/unix"

// pollEvents are those of poll(2) after which a connection may have closed.
const pollEvents = unix.POLLIN

// closedBehind sees nothing: there is no POLLRDHUP here.
func closedBehind(int) bool { return false }
