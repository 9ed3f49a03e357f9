// Package beat lets the managers of one process renew their leases at the same time, so that the store can renew them by one statement.
//
// When a lease of one manager is due, the others hear the beat, and renew those of theirs that are due soon, as a manager does with its own
// leases: within half of the shorter of both intervals, so that a short TTL of one pod does not make others renew long ones more often. After a
// renewal interval all leases with the same TTL are due together, whenever they were opened. Nothing else depends on the beat: a manager that hears
// none renews its leases when they are due.
package beat

import (
	"sync"
	"time"
)

// Beat is what managers share. The zero value is ready.
type Beat struct {
	mu      sync.Mutex
	members map[*Member]struct{}
}

// Member is a manager's part in a beat. A nil one is alone.
type Member struct {
	beat *Beat
	hear func(interval time.Duration)
}

// Join adds a manager. hear is called when a lease of another one is due, with the interval of its renewals. It must not block. A nil beat has no
// members.
func (b *Beat) Join(hear func(interval time.Duration)) *Member {
	if b == nil {
		return nil
	}
	m := &Member{b, hear}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.members == nil {
		b.members = map[*Member]struct{}{}
	}
	b.members[m] = struct{}{}
	return m
}

// Leave ends it.
func (m *Member) Leave() {
	if m == nil {
		return
	}
	m.beat.mu.Lock()
	defer m.beat.mu.Unlock()
	delete(m.beat.members, m)
}

// Due lets the others hear that a lease of this one is due, which is renewed once in an interval.
func (m *Member) Due(interval time.Duration) {
	if m == nil {
		return
	}
	m.beat.mu.Lock()
	defer m.beat.mu.Unlock()
	for other := range m.beat.members {
		if other != m {
			other.hear(interval)
		}
	}
}
