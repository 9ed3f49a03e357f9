package memory

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/internal/instances"
	"github.com/locksidecar/locksidecar/store/key"
)

// shards is the number of mutexes over which the keys of a namespace are spread.
const shards = 64

// Space is the data that instances share. [NewSpace] makes it.
type Space struct {
	seed   maphash.Seed
	start  time.Time
	tokens atomic.Int64
	office office
	views  instances.Running

	mu         sync.Mutex
	namespaces map[string]*namespace
}

// NewSpace makes an empty space.
func NewSpace() *Space { return NewSpaceAfter(time.Now().UnixMicro()) }

// NewSpaceAfter makes an empty space whose first grant has the next token. It is for tests that name their tokens.
func NewSpaceAfter(token int64) *Space {
	s := &Space{
		seed:       maphash.MakeSeed(),
		start:      time.Now().Add(-1), // so that Moment.At is never zero
		namespaces: map[string]*namespace{},
	}
	s.tokens.Store(token)
	return s
}

var _ store.Space = (*Space)(nil)

// Start does nothing.
func (s *Space) Start(context.Context) error { return nil }

// Stop does nothing.
func (s *Space) Stop() {}

// View implements [store.Space].
func (s *Space) View(id store.Identity) store.Store { return s.Open(id) }

// Open returns an instance's view of the data. An instance may be opened once.
func (s *Space) Open(id store.Identity) *Store {
	opened := &Store{id: id, ns: s.namespace(id.Namespace)}
	opened.self = key.Instance{Name: id.Instance, Pod: id.Pod, Deliver: opened.deliver}
	return opened
}

func (s *Space) namespace(name string) *namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := s.namespaces[name]
	if ns == nil {
		ns = newNamespace(s)
		s.namespaces[name] = ns
	}
	return ns
}

// now reads the clock. Callers hold the shard's mutex, so the times of a key never decrease.
func (s *Space) now() key.Moment {
	now := time.Now()
	return key.Moment{Wall: now, At: int64(now.Sub(s.start))}
}

// namespace holds keys, and the leases of the instances that lock them.
type namespace struct {
	space    *Space
	leases   leaseIndex
	shards   [shards]shard
	sweeping sync.Mutex
	// lastSignal is the id of the last signal.
	lastSignal atomic.Int64
}

func newNamespace(space *Space) *namespace {
	ns := &namespace{space: space}
	ns.leases.init()
	for i := range ns.shards {
		ns.shards[i].rows = map[string]*row{}
		ns.shards[i].visited = map[*row]struct{}{}
	}
	return ns
}

func (ns *namespace) shard(k string) *shard {
	return &ns.shards[maphash.String(ns.space.seed, k)%shards]
}

type shard struct {
	mu   sync.Mutex
	rows map[string]*row
	// visited are the rows with waiters, skipped waiters or watchers. Reaps visit them.
	visited map[*row]struct{}

	_ [40]byte // neighbours do not share a cache line
}

// row is the row of a key. Its shard's mutex guards it.
type row struct {
	key.Row
	stored, visited bool
}

// unlock notes what an operation made of a row.
func (sh *shard) unlock(r *row) {
	sh.note(r)
	sh.mu.Unlock()
}

func (sh *shard) note(r *row) {
	if !r.stored && !r.Empty() {
		r.stored, sh.rows[r.Key] = true, r
	}
	wanted := r.Wanted()
	switch {
	case wanted == r.visited:
		return
	case wanted:
		sh.visited[r] = struct{}{}
	default:
		delete(sh.visited, r)
	}
	r.visited = wanted
}
