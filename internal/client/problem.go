package client

import (
	"encoding/json"
	"fmt"
	"strings"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// ProblemError is an answer of application/problem+json.
type ProblemError struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Reason string `json:"reason"`
	LockMode
	Holder        *Holder `json:"holder"`
	Kept          bool    `json:"kept"`
	QueueLength   *int    `json:"queue_length"`
	QueuePosition *int    `json:"queue_position"`

	cause error
}

// problemOf reads a problem again, with what only people want to see.
func problemOf(e *locksidecar.Error) error {
	p := &ProblemError{cause: e}
	if err := json.Unmarshal(e.Raw, p); err != nil {
		return e
	}
	p.Status = e.Status
	return p
}

// Unwrap is the error of the client for Go, for errors.Is with its kinds.
func (e *ProblemError) Unwrap() error { return e.cause }

// oneLine is for errors of the database's driver, which have a line for each address.
var oneLine = strings.NewReplacer("\n\t", " ", "\n", " ", "\t", " ")

// Error is printable text for people.
func (e *ProblemError) Error() string {
	text := Printable(oneLine.Replace(e.Detail))
	if text == "" {
		text = fmt.Sprintf("the sidecar answered %d %s", e.Status, Printable(e.Code))
	}
	if e.Holder != nil && e.Reason != "quiet" { // then nobody holds the lock, or the detail says more
		text = "not granted: " + e.Holder.String()
		if e.Mode == ModeShared {
			text += "; " + e.LockMode.String() // the shown holder is the oldest
		}
		if e.Kept {
			text += ", or kept by its sidecar"
		}
	}
	if e.QueueLength != nil && *e.QueueLength > 0 {
		text += fmt.Sprintf("; waiting: %d", *e.QueueLength)
	}
	if e.QueuePosition != nil {
		text += fmt.Sprintf("; queue position: %d", *e.QueuePosition)
	}
	return text
}

// ExitCode maps the API's codes to exit codes.
func (e *ProblemError) ExitCode() int {
	switch e.Code {
	case "held", "wait_timeout":
		return exitcode.NoLock
	case "store_unavailable", "draining", "limit", "request_timeout", "session_ended": // a command opens another session
		return exitcode.Unavailable
	case "not_holder", "lock_lost", "not_held", "forbidden", "unauthorized":
		return exitcode.Refused
	case "invalid_request", "limit_mismatch", "too_large", "head_too_large":
		return exitcode.Usage
	}
	return exitcode.Unexpected
}
