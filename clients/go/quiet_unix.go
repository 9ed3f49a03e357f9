//go:build unix

package locksidecar

import (
	"errors"
	"syscall"
)

// isQuiet reports whether a connection is open, and nothing has come. It does not wait. What has come is not read again.
func isQuiet(k *conn) bool {
	quiet := false
	err := k.raw.Control(func(fd uintptr) { // Read would mind the deadline of the last call
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:])
		quiet = errors.Is(err, syscall.EAGAIN)
	})
	return err == nil && quiet
}
