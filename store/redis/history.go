package redis

import (
	"crypto/sha256"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// histories are the present ones of the partitions, and the TTLs that this instance used in earlier ones.
type histories struct {
	mu sync.Mutex
	of []string
	// present is the longest TTL of the leases that were opened since the last change, before that of all earlier ones.
	present, before time.Duration
}

// note notes the history of a partition, and reports whether it is another than before.
func (h *histories) note(part int, history string) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of[part] == history {
		return false
	}
	changed = h.of[part] != ""
	if h.of[part] = history; changed {
		h.before = max(h.before, h.present)
	}
	return changed
}

// opened notes the TTL of a lease.
func (h *histories) opened(ttl time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.present = max(h.present, ttl)
}

// longest is the longest TTL in ms for which a server that lost everything must be quiet.
func (h *histories) longest(usual time.Duration) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(usual, h.before).Milliseconds()
}

// together is the history of all partitions. It changes if that of one does.
func (h *histories) together() store.History {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := sha256.Sum256([]byte(strings.Join(h.of, " ")))
	return store.History(sum[:16])
}

// usual is the TTL that this instance says to a server before it opens leases.
func (b *Backend) usual() time.Duration {
	if b.config.Quick {
		return 0
	}
	return b.config.TTL
}

// noted rounds a TTL up by at most an eighth, so that the server notes few different ones. It is zero if the quiet time
// does not count the lease: nobody believes in the others after a failover.
func (b *Backend) noted(ttl time.Duration, renewed bool) int64 {
	if b.config.Quick || !renewed {
		return 0
	}
	ms := ttl.Milliseconds()
	step := int64(1) << max(0, bits.Len64(uint64(ms))-4) //nolint:gosec // above zero
	return (ms + step - 1) / step * step
}
