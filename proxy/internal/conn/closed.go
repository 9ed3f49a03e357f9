package conn

import (
	"errors"
	"os"
	"syscall"
)

// awaitClose sleeps until the connection closes, or its read deadline passes: false. It takes no bytes.
func awaitClose(raw syscall.RawConn) bool {
	closed := false
	err := raw.Read(func(fd uintptr) bool {
		closed = hasClosed(int(fd))
		return closed // false: sleep until the poller has news
	})
	return closed || !errors.Is(err, os.ErrDeadlineExceeded)
}
