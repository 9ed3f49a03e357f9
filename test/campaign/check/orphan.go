package check

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

// Orphans waits until the store holds nothing for clients that have gone: see [stored.View]. Anything that is still there
// at the end of within is an orphan. A connection that fails is made again until then.
func Orphans(ctx context.Context, store stored.View, pods []string, within time.Duration) (orphans []Violation, err error) {
	defer store.Close()
	for deadline := time.Now().Add(within); ; {
		left, err := store.Left(ctx, pods)
		late := time.Now().After(deadline)
		if err == nil && len(left) == 0 || err != nil && late {
			return nil, err
		}
		if late {
			for _, what := range left {
				orphans = append(orphans, Violation{Rule: "orphan", Text: what + " is left"})
			}
			return orphans, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond): // the pause of a poll
		}
	}
}
