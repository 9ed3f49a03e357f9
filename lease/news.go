package lease

import (
	"github.com/locksidecar/locksidecar/store"
)

// News passes the store's news on, by kind: the outcome of a waiting call, signals for holders, recalls of kept keys, events of watched
// keys. See [store.Store.Start]. It does not block.
func (m *Manager) News(n store.News) {
	switch {
	case n.Missed:
		m.signals.Poll()
		m.watches.Recheck()
		m.acquirer.Queue.LookAgain()
		m.acquirer.GiveUpAll(nil) // recalls may have been missed
	case n.Signals:
		m.signals.Poll()
	case n.Recall:
		m.acquirer.Recall(n.Key)
	case n.Event != nil:
		m.watches.Receive(*n.Event)
	default:
		m.acquirer.Queue.News(n)
	}
}
