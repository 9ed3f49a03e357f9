package conn

import (
	"syscall"

	"golang.org/x/sys/unix"
)

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
