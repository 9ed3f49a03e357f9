package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// problemError is an answer of application/problem+json.
type problemError struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Reason string `json:"reason"`
	lockMode
	Holder        *lockHolder `json:"holder"`
	QueueLength   *int        `json:"queue_length"`
	QueuePosition *int        `json:"queue_position"`
}

func newProblem(status int, body []byte) error {
	var e problemError
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		return fmt.Errorf("the sidecar answered %d: %.200q", status, body)
	}
	e.Status = status
	return &e
}

// oneLine is for the errors of the database's driver, which have a line for each address.
var oneLine = strings.NewReplacer("\n\t", " ", "\n", " ", "\t", " ")

// Error is for people, and printable.
func (e *problemError) Error() string {
	text := printable(oneLine.Replace(e.Detail))
	if text == "" {
		text = fmt.Sprintf("the sidecar answered %d %s", e.Status, printable(e.Code))
	}
	if e.Holder != nil {
		text = "not granted: " + e.Holder.String()
		if e.Mode == modeShared {
			text += "; " + e.lockMode.String() // with the one that was granted first
		}
	}
	if e.QueueLength != nil && *e.QueueLength > 0 {
		text += fmt.Sprintf("; waiting: %d", *e.QueueLength)
	}
	if e.QueuePosition != nil {
		text += fmt.Sprintf("; place in the queue: %d", *e.QueuePosition)
	}
	return text
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
	case "invalid_request", "limit_mismatch", "too_large", "head_too_large":
		return exitcode.Usage
	}
	return exitcode.Unexpected
}
