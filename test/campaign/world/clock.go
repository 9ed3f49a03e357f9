package world

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// clock is that of servers which run with libfaketime. The file says by how much it is ahead.
type clock struct {
	file string

	mu    sync.Mutex
	ahead time.Duration
}

// Step sets it ahead by one more duration, for all processes of the servers: each reads the file
// whenever it asks for the time, or once a second.
func (c *clock) Step(by time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// In one piece, for it is read meanwhile.
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+.3f\n", (c.ahead+by).Seconds()), 0o644); err != nil {
		return err
	}
	c.ahead += by
	return os.Rename(next, c.file)
}

// quickest is by how much a server's clock is ahead of this machine's: at most by as much less as the quickest of some
// answers took, which are so many that one was quick.
func quickest(ctx context.Context, ask func() (time.Time, error)) (ahead time.Duration, err error) {
	const some, quick = 10, 5 * time.Millisecond
	best := patience
	for n := 0; n < some || best > quick && ctx.Err() == nil; n++ {
		asked := time.Now()
		now, err := ask()
		if err != nil {
			return 0, err
		}
		if took := time.Since(asked); took < best {
			best, ahead = took, time.Until(now)
		}
	}
	return ahead, nil
}
