package lease

import (
	"sync"
	"testing"
)

// A test that has cleared its alarm reads the clock undisturbed, also if another goroutine
// reads it in the moment in which the alarm is cleared.
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
			t.Fatal("it rang after it was cleared")
		}
	}
}
