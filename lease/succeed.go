package lease

import (
	"context"
	"errors"
	"math"
	"time"
)

var errSucceeding = errors.New("burying the leases of the sidecar that ran here before")

// forever is longer than any process runs.
const forever = time.Duration(math.MaxInt64)

// Succeed buries what instances left that ran here before and run no more: their
// apps died with them, so nobody needs to wait until their leases expire. It works
// in the background, for as long as the manager runs, until the store confirms;
// then done is called, and the manager is ready if the store is. Locks can be asked
// for meanwhile.
func (m *Manager) Succeed(instances []string, done func()) {
	if len(instances) == 0 {
		done()
		return
	}
	m.succeeding.Store(true)
	m.unburied.Add(1)
	m.inBackground(func(ctx context.Context) bool {
		for len(instances) > 0 {
			if err := m.st.BuryInstance(ctx, instances[0]); err != nil {
				m.log.Warn("a predecessor's leases are not buried, trying again", "instance", instances[0], "error", err)
				return false
			}
			instances = instances[1:]
		}
		done()
		m.unburied.Add(-1)
		m.succeeding.Store(false)
		return true
	}, forever, func() {})
}
