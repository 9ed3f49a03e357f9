package lease

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

var errReaping = errors.New("reaping the leases of the sidecar that ran here before")

// reapRounds is how often revoking the predecessors is tried, with a store that
// answers, before the manager is ready without: somebody keeps a row of theirs locked,
// and the leases expire by themselves.
const reapRounds = 5

// forever is longer than any process runs.
const forever = time.Duration(math.MaxInt64)

// ReapPredecessors revokes what instances left that ran here before and run no more: their
// apps died with them, so nobody needs to wait until their leases expire. It works
// in the background, for as long as the manager runs, until the store confirms; then
// done is called. Until then, or a few tries that failed, the manager is not ready.
// Locks can be asked for meanwhile. The instances come in the order in which they ran.
func (m *Manager) ReapPredecessors(instances []string, done func()) {
	if len(instances) == 0 {
		done()
		return
	}
	m.reaping.Store(true)
	m.leftUnrevoked.Add(1)
	left, rounds := slices.Clone(instances), 0
	slices.Reverse(left) // the last one's leases are the most likely to live
	m.inBackground(func(ctx context.Context) bool {
		left = slices.DeleteFunc(left, func(instance string) bool { return m.reapInstance(ctx, instance) })
		if rounds++; m.st.Ready() != nil {
			rounds = 0
		}
		if len(left) == 0 {
			done()
			m.leftUnrevoked.Add(-1)
		}
		if len(left) == 0 || rounds == reapRounds {
			m.reaping.Store(false)
		}
		return len(left) == 0
	}, forever, func() {})
}

// reapInstance revokes what one instance left.
func (m *Manager) reapInstance(ctx context.Context, instance string) bool {
	reaper, ok := m.st.(store.Reaper)
	if !ok {
		return true // they expire by themselves
	}
	err := reaper.ReapInstance(ctx, instance)
	if err != nil {
		m.log.Warn("a predecessor's leases are not reaped, trying again", "instance", instance, "error", err)
	}
	return err == nil
}
