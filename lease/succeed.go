package lease

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"
)

var errSucceeding = errors.New("burying the leases of the sidecar that ran here before")

// succeedRounds is how often burying the predecessors is tried, with a store that
// answers, before the manager is ready without: somebody keeps a row of theirs locked,
// and the leases expire by themselves.
const succeedRounds = 5

// forever is longer than any process runs.
const forever = time.Duration(math.MaxInt64)

// Succeed buries what instances left that ran here before and run no more: their
// apps died with them, so nobody needs to wait until their leases expire. It works
// in the background, for as long as the manager runs, until the store confirms; then
// done is called. Until then, or a few tries that failed, the manager is not ready.
// Locks can be asked for meanwhile. The instances come in the order in which they ran.
func (m *Manager) Succeed(instances []string, done func()) {
	if len(instances) == 0 {
		done()
		return
	}
	m.succeeding.Store(true)
	m.unburied.Add(1)
	left, rounds := slices.Clone(instances), 0
	slices.Reverse(left) // the last one's leases are the most likely to live
	m.inBackground(func(ctx context.Context) bool {
		left = slices.DeleteFunc(left, func(instance string) bool { return m.succeeded(ctx, instance) })
		if rounds++; m.st.Ready() != nil {
			rounds = 0
		}
		if len(left) == 0 {
			done()
			m.unburied.Add(-1)
		}
		if len(left) == 0 || rounds == succeedRounds {
			m.succeeding.Store(false)
		}
		return len(left) == 0
	}, forever, func() {})
}

// succeeded buries what one instance left.
func (m *Manager) succeeded(ctx context.Context, instance string) bool {
	err := m.st.BuryInstance(ctx, instance)
	if err != nil {
		m.log.Warn("a predecessor's leases are not buried, trying again", "instance", instance, "error", err)
	}
	return err == nil
}
