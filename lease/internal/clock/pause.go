package clock

import (
	"context"
	"math/rand/v2"
	"time"
)

// RetryPause is the pause after a failed operation of the store.
const RetryPause = 250 * time.Millisecond

// jitterShare makes a pause up to a tenth shorter, so that sidecars that started together do not
// stay in step.
const jitterShare = 0.1

// Jitter returns a random share of a pause, at most 1.
func Jitter() float64 { return 1 - jitterShare*rand.Float64() }

// Jittered returns a pause that is a little shorter.
func Jittered(d time.Duration) time.Duration { return time.Duration(float64(d) * Jitter()) }

// Rest waits for so long, or until ctx ends: then it returns why.
func Rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
