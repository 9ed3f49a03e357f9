package lease

import (
	"sync"
	"testing"
)

// After a test has cleared its alarm, reads of the clock do not run it. This holds also for a read
// by another goroutine at the same moment.
func TestClearedAlarmStaysCleared(t *testing.T) {
	const reads = 100
	for range 2_000 {
		c, rang := &fakeClock{}, false
		c.atRead(reads, func() { rang = true })
		var other sync.WaitGroup
		begun := make(chan struct{})
		other.Go(func() {
			c.Now()
			close(begun)
			for range reads - 1 {
				c.Now()
			}
		})
		<-begun
		c.next.Store(nil)
		other.Wait()
		for range reads {
			c.Now()
		}
		if rang {
			t.Fatal("the alarm rang after it was cleared")
		}
	}
}
