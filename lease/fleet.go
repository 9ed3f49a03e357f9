package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Stats counts what the whole database holds, in all namespaces. It may read every
// lock that there is: it is for people, and limited by the store's timeout.
func (m *Manager) Stats(ctx context.Context) (store.Stats, error) {
	return m.st.Stats(ctx)
}
