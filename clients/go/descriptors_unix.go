//go:build unix

package locksidecar

import (
	"fmt"
	"syscall"
)

// descriptorLimit names the limit of this process.
func descriptorLimit() string {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return "see ulimit -n"
	}
	return fmt.Sprintf("this process may have %d (ulimit -n)", limit.Cur)
}
