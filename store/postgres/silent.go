package postgres

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// silent reports whether nothing has arrived on an unused connection. What arrives there is mostly the end of the connection: the server
// was stopped, or an operator ended the session. A statement would still be sent, and its outcome would be unknown. This waits for nothing.
func silent(conn net.Conn) bool {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var peeked error
	// Not raw.Read: it would wait for a reader that pgx may have left there after a slow write.
	err = raw.Control(func(fd uintptr) {
		var first [1]byte
		_, _, peeked = unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && errors.Is(peeked, unix.EAGAIN)
}
