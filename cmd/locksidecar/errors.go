package main

import (
	"errors"
	"fmt"
)

// The exit codes, by cause. Those above 60 are the usual ones of sysexits.h, so
// that scripts can tell "try again later" from "fix something first". They are
// documented in exitCodesHelp and docs/operations.md.
const (
	exitOK          = 0
	exitUnexpected  = 1
	exitUsage       = 2
	exitUnavailable = 69
	exitCannotOpen  = 73
	exitNoLock      = 75
	exitRefused     = 77
	exitConfig      = 78
)

const exitCodesHelp = `Exit codes:
  0   done
  1   something unexpected
  2   the command line, a value in it, or a manifest is wrong
  69  no sidecar listens, or it or its store is not available now
  73  the sidecar's socket (or address) cannot be opened
  75  the lock was not to be had: somebody holds it, or the wait was in vain
  77  refused: the lock is not yours (any more), nobody holds it, or you may not do that
  78  the configuration is wrong: a LOCKSIDECAR_ variable, or a store that cannot work
      or needs a newer sidecar`

// causeError is an error of this program's own, with the exit code of its cause.
type causeError struct {
	code int
	err  error
}

func (e *causeError) Error() string { return e.err.Error() }
func (e *causeError) Unwrap() error { return e.err }

// statusError is an exit code of which all has been said: CMD's own, for `run`.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// because gives err an exit code; nil stays nil.
func because(code int, err error) error {
	if err == nil {
		return nil
	}
	return &causeError{code, err}
}

// usagef is a mistake in the command line.
func usagef(format string, args ...any) error {
	return because(exitUsage, fmt.Errorf(format, args...))
}

// exitCode maps an error to the process's exit code.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if cause, ok := errors.AsType[*causeError](err); ok {
		return cause.code
	}
	if status, ok := errors.AsType[statusError](err); ok {
		return int(status)
	}
	if problem, ok := errors.AsType[*problemError](err); ok {
		return problem.exitCode()
	}
	return exitUnexpected
}

// exitCode maps the wire's codes.
func (e *problemError) exitCode() int {
	switch e.Code {
	case "held", "wait_timeout":
		return exitNoLock
	case "store_unavailable", "draining", "limit", "request_timeout":
		return exitUnavailable
	case "not_holder", "lock_lost", "not_held", "forbidden":
		return exitRefused
	case "invalid_request", "too_large", "head_too_large":
		return exitUsage
	}
	return exitUnexpected
}
