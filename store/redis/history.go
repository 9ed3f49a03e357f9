package redis

import (
	"crypto/sha256"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// histories are the present ones of the partitions, and the TTLs that this instance used in earlier ones.
type histories struct {
	mu sync.Mutex
	of []string
	// present is the longest TTL of the leases that were opened since the last change, before that of all earlier ones.
	present, before time.Duration
	// seen is above all tokens that this instance saw, and seenBefore above those that it saw before the last change.
	seen       cas.Highest
	seenBefore int64
}

// saw notes the tokens of a record.
func (h *histories) saw(r *cas.Record) {
	h.seen.Raise(r.Base + int64(r.Tokens))
}

// remembered is what a server of a partition that lost everything must know: see functions.lua.
func (h *histories) remembered(part int, usual time.Duration) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, seen := max(usual, h.before), h.seenBefore
	all := before
	if h.of[part] != "" { // the instance may have locks and have seen tokens of this partition
		all, seen = max(before, h.present), h.seen.Load()
	}
	text := make([]byte, 0, 96)
	for _, n := range []int64{before.Milliseconds(), all.Milliseconds(), h.seenBefore, seen} {
		text = append(strconv.AppendInt(text, n, 10), ' ')
	}
	return string(append(text, h.of[part]...))
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
		h.before, h.seenBefore = max(h.before, h.present), h.seen.Load()
	}
	return changed
}

// opened notes the TTL of a lease.
func (h *histories) opened(ttl time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.present = max(h.present, ttl)
}

// told are the histories in which an operation's calls were answered, by partition; empty: it asked others. Two calls to one
// partition may be answered in different ones. Then the earlier counts, because the operation's result is partly of that.
type told struct {
	mu sync.Mutex
	by []string
}

func (t *told) note(part int, history string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[part] == "" {
		t.by[part] = history
	}
}

// together is the history of all partitions, as an operation was told. It changes if that of one does. What another
// operation hears meanwhile does not count: a failover may lie between the two.
func (b *Server) together(t *told) store.History {
	b.history.mu.Lock()
	all := slices.Clone(b.history.of)
	b.history.mu.Unlock()
	for part, history := range t.by {
		if history != "" {
			all[part] = history
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(all, " ")))
	return store.History(sum[:16])
}

func (b *Server) newTold() *told { return &told{by: make([]string, len(b.parts))} }

// usual is the TTL that this instance says to a server before it opens leases.
func (b *Server) usual() time.Duration {
	if b.config.Quick {
		return 0
	}
	return b.config.TTL
}

// noted rounds a TTL up by at most an eighth, so that the server notes few different ones. It is zero if the quiet time
// does not count the lease: nobody believes in the others after a failover.
func (b *Server) noted(ttl time.Duration, renewed bool) int64 {
	if b.config.Quick || !renewed {
		return 0
	}
	ms := ttl.Milliseconds()
	step := int64(1) << max(0, bits.Len64(uint64(ms))-4)
	return (ms + step - 1) / step * step
}
