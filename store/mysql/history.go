package mysql

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// state is what a packet's guard says: the history, and for how long nothing is granted.
type state struct {
	history store.History
	quiet   time.Duration
}

// latest is when the latest history began that this instance has seen. A server with an earlier one is an old primary.
type latest struct{ began cas.Highest }

// readGuard reads the result of a packet's guard.
func (b *Server) readGuard(found results) (state, error) {
	if len(found) == 0 || len(found[0]) != 1 || len(found[0][0]) != 4 {
		return state{}, errFormat
	}
	left, history := found[0][0][0], found[0][0][1]
	if left == nil || len(history) != 16 {
		return state{}, errMetaLost
	}
	micros, err := strconv.ParseInt(string(left), 10, 64)
	began, err2 := strconv.ParseInt(string(found[0][0][3]), 10, 64)
	if err != nil || err2 != nil {
		return state{}, errFormat
	}
	b.latest.began.Raise(began)
	quiet := max(0, time.Duration(micros)*time.Microsecond)
	b.quiet.Note(quiet)
	return state{history: store.History(history), quiet: quiet}, nil
}
