package client

import "fmt"

// Waiter is a waiting call.
type Waiter struct {
	Key         string  `json:"key"`
	Position    int     `json:"position"`
	Pod         string  `json:"pod"`
	Session     *string `json:"session"`
	Owner       *string `json:"owner"`
	Mode        string  `json:"mode"`
	Limit       *int    `json:"limit"` // null: none
	WaitingMS   int64   `json:"waiting_ms"`
	Traceparent *string `json:"traceparent"`
}

// Awaited is the mode of the awaited lock, for people: "shared of 5" with a limit of five.
func (w *Waiter) Awaited() string {
	if w.Limit != nil {
		return fmt.Sprintf("%s of %d", Printable(w.Mode), *w.Limit)
	}
	return Printable(w.Mode)
}
