package cli

import (
	"fmt"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// usagef is a mistake in the command line.
func usagef(format string, args ...any) error {
	return exitcode.With(exitcode.Usage, fmt.Errorf(format, args...))
}

// ExitCode maps the codes of the API.
func (e *problemError) ExitCode() int {
	switch e.Code {
	case "held", "wait_timeout":
		return exitcode.NoLock
	case "store_unavailable", "draining", "limit", "request_timeout":
		return exitcode.Unavailable
	case "not_holder", "lock_lost", "not_held", "forbidden":
		return exitcode.Refused
	case "invalid_request", "too_large", "head_too_large":
		return exitcode.Usage
	}
	return exitcode.Unexpected
}
