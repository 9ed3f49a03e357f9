package postgres

import (
	"sync/atomic"
	"time"
)

// clock estimates the database's clock from what the database last said, and the
// monotonic time since. An answer is old when it arrives, so the estimate is never
// ahead of a clock that runs evenly.
type clock struct {
	last atomic.Pointer[clockReading]
}

type clockReading struct{ theirs, ours time.Time }

// heard notes what the database's clock said a moment ago.
func (c *clock) heard(theirs time.Time) {
	c.last.Store(&clockReading{theirs: theirs, ours: time.Now()})
}

// now is the database's time, at least. Before it was heard, it is this machine's.
func (c *clock) now() time.Time {
	last := c.last.Load()
	if last == nil {
		return time.Now()
	}
	return last.theirs.Add(time.Since(last.ours))
}
