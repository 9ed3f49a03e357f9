package postgres

import (
	"sync/atomic"
	"time"
)

// clock estimates the database's time from its last answer and the monotonic time since then. An answer
// takes time to arrive, so the estimate is never ahead of a clock that runs evenly.
type clock struct {
	last atomic.Pointer[clockReading]
}

type clockReading struct{ theirs, ours time.Time }

func (c *clock) heard(theirs time.Time) {
	c.last.Store(&clockReading{theirs: theirs, ours: time.Now()})
}

// now returns a lower bound of the database's time. Before the first answer, it returns this machine's time.
func (c *clock) now() time.Time {
	last := c.last.Load()
	if last == nil {
		return time.Now()
	}
	return last.theirs.Add(time.Since(last.ours))
}
