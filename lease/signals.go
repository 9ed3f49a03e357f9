package lease

import (
	"github.com/locksidecar/locksidecar/store"
)

type signalLocks struct{ m *Manager }

// LeasesInUse returns the open leases with users.
func (l signalLocks) LeasesInUse() []store.LeaseID { return l.m.leases.InUse() }

// HoldsAny reports whether a session holds a lock.
func (l signalLocks) HoldsAny() bool { return !l.m.holdings.Empty() }

// MayGet reports whether a call waits for the key.
func (l signalLocks) MayGet(key string) bool { return l.m.acquirer.QueueLength(key) > 0 }

// Apply does what a signal asks for. It reports false if the grant that is meant is not known here.
func (l signalLocks) Apply(sig store.Signal) bool {
	return l.m.holdings.Signal(sig)
}
