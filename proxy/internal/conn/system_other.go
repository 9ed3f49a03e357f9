//go:build !linux

package conn

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// chmodUnfollowed sets the mode of a file, and does not follow a link.
func chmodUnfollowed(path string, mode os.FileMode) error {
	return unix.Fchmodat(unix.AT_FDCWD, path, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
}

// closedBehind always returns false, because this system has no POLLRDHUP.
func closedBehind(int) bool { return false }

// KnowsPeers: LOCKSIDECAR_ALLOWED_UIDS is refused here, because the user cannot be checked.
const KnowsPeers = false

func peerOf(syscall.RawConn) Peer { return Peer{} }

// limitUnanswered does nothing, because only Linux has this limit. The probes end a silent connection.
func limitUnanswered(syscall.RawConn, time.Duration) {}

// hasUnread is not known here.
func hasUnread(syscall.RawConn) bool { return false }

// silentFor is not known here.
func silentFor(syscall.RawConn) time.Duration { return 0 }
