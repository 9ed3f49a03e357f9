// Package exitcode maps errors to the exit codes of the process. The outermost error in a chain that has a code
// decides.
package exitcode

import (
	"errors"
	"fmt"
)

// The exit codes, by cause (Help, docs/operate.md). Those above 60 are from sysexits.h, so scripts can
// distinguish "try again later" from "fix something first".
const (
	OK          = 0
	Unexpected  = 1
	Usage       = 2
	Unavailable = 69
	CannotOpen  = 73
	NoLock      = 75
	Refused     = 77
	Config      = 78
)

// Title begins the exit codes in --help.
const Title = "Exit codes:"

// Short is for the help of a command that explains no codes of its own.
const Short = Title + ` 0 done, 1 an unexpected error, 2 a wrong command line, 69 no sidecar or store now,
75 held by others, 77 refused, 78 a wrong configuration; "locksidecar --help" says more.`

// Help describes the exit codes in the help of the program.
const Help = Title + `
  0   done
  1   an unexpected error; for "deadlocks": there is a circle; for "inject --stale": there
      are older sidecars
  2   the command line, a value in it, or a manifest is wrong
  69  no sidecar listens, or it or its store is not available now; for "inject --stale":
      the API server does not answer, or refuses
  73  the sidecar's socket (or address) cannot be opened
  75  the lock is held by others, or was not granted within --wait
  77  refused: the lock is not yours (any more), it is not held, or you may not do that
  78  the configuration is wrong: a LOCKSIDECAR_ variable, or a store that cannot work
      or needs a newer sidecar`

// coder is an error that knows its exit code.
type coder interface {
	error
	ExitCode() int
}

// Of is the exit code of an error.
func Of(err error) int {
	if err == nil {
		return OK
	}
	if c, ok := errors.AsType[coder](err); ok {
		return c.ExitCode()
	}
	return Unexpected
}

// With gives err an exit code. nil stays nil.
func With(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{err, code}
}

type codedError struct {
	error

	code int
}

func (e *codedError) Unwrap() error { return e.error }
func (e *codedError) ExitCode() int { return e.code }

// StatusError is an exit code without a message, such as that of the command that `run` ran.
type StatusError int

func (s StatusError) Error() string { return fmt.Sprintf("exit code %d", int(s)) }

// ExitCode is the code itself.
func (s StatusError) ExitCode() int { return int(s) }
