package mysql

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// state is what a packet's guard says: the history, and for how long nothing is granted.
type state struct {
	history store.History
	quiet   time.Duration
}

// heard reads the result of a packet's guard.
func heard(found results) (state, error) {
	if len(found) == 0 || len(found[0]) != 1 || len(found[0][0]) != 3 {
		return state{}, errFormat
	}
	left, history := found[0][0][0], found[0][0][1]
	if left == nil || len(history) != 16 {
		return state{}, errMetaLost
	}
	micros, err := strconv.ParseInt(string(left), 10, 64)
	if err != nil {
		return state{}, errFormat
	}
	return state{history: store.History(history), quiet: max(0, time.Duration(micros)*time.Microsecond)}, nil
}
