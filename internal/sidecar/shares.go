package sidecar

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

const (
	// lockMemory is reckoned for a lock without its key and data: docs/performance.md measured 450 bytes with a short key.
	lockMemory = 512
	// weighPause is how long a comparison of the pods holds good.
	weighPause = 100 * time.Millisecond
)

// shares divides the live memory of a node's lock server among its pods. If it is low, the fewest pods that together take half of what all take
// get nothing more that lasts. So one pod that holds very many locks does not keep the others from theirs. Only near the limit nobody gets anything more.
type shares struct {
	low, full func() bool

	mu      sync.Mutex
	weights map[hostfolder.Key]func() int64
	weighed time.Time
	// heavy are the pods that together had half, when it was weighed last, and those that had as much as the last of them.
	heavy map[hostfolder.Key]bool
}

func newShares(low, full func() bool) *shares {
	return &shares{low: low, full: full, weights: map[hostfolder.Key]func() int64{}}
}

// watchShares watches the live memory. Above three quarters of the limit it is low, as for a sidecar, and above nine tenths it is full.
func watchShares(limit int64, log *slog.Logger) *shares {
	low := liveAbove(limit/4*3, func(now bool, used uint64) {
		if now {
			log.Warn("memory is nearly used up: the pods that take the most get no locks, sessions and event streams until some is free", "live_bytes", used, "setting", "GOMEMLIMIT", "limit_bytes", limit)
		} else {
			log.Info("memory is free again")
		}
	})
	full := liveAbove(limit/10*9, func(now bool, used uint64) {
		if now {
			log.Warn("memory is used up: no pod gets locks, sessions and event streams until some is free", "live_bytes", used, "setting", "GOMEMLIMIT", "limit_bytes", limit)
		}
	})
	return newShares(low, full)
}

// add adds a pod, with the memory that it takes.
func (m *shares) add(k hostfolder.Key, weight func() int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.weights[k] = weight
}

func (m *shares) forget(k hostfolder.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.weights, k)
	delete(m.heavy, k)
}

// refuses reports whether a pod gets nothing more that lasts.
func (m *shares) refuses(k hostfolder.Key) bool {
	switch {
	case !m.low():
		return false
	case m.full():
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.weighed) >= weighPause {
		m.weigh()
	}
	return m.heavy[k]
}

// weigh compares the pods. The caller holds m.mu.
func (m *shares) weigh() {
	sum, each := int64(0), make(map[hostfolder.Key]int64, len(m.weights))
	for k, weight := range m.weights {
		each[k] = weight()
		sum += each[k]
	}
	heaviest := slices.SortedFunc(maps.Keys(each), func(a, b hostfolder.Key) int { return cmp.Compare(each[b], each[a]) })
	m.weighed, m.heavy = time.Now(), map[hostfolder.Key]bool{}
	together := int64(0)
	for i, k := range heaviest {
		if each[k] == 0 || 2*together >= sum && each[k] < each[heaviest[i-1]] {
			break
		}
		m.heavy[k] = true
		together += each[k]
	}
}
