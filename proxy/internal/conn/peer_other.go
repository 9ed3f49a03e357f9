//go:build !linux

package conn

import "syscall"

// KnowsPeers: LOCKSIDECAR_ALLOWED_UIDS is refused where nobody checks it.
const KnowsPeers = false

func peerOf(syscall.RawConn) Peer { return Peer{} }
