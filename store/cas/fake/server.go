// Package fake is a server for the engine store/cas that lives in memory and fails as it is told. It is for tests
// only. It is the reference for other backends: it does what the documentation of [cas.Backend] says, at once and
// with exact times. It uses no clock but that of package time, so it runs in virtual time.
package fake

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Server is the data that backends share.
type Server struct {
	// Between is called once, between the reading of records and that of the states of their leases. Several servers read
	// them with two requests.
	Between func()
	// Limits are those of a swap, [cas.UsualLimits] at first. Set them before the first use.
	Limits cas.Limits
	// Swapped is called with each swap that was carried out, and with what tells whether a lease lives. It must not
	// call the server. Set it before the first use.
	Swapped func(before, after cas.Record, alive func(store.LeaseID) bool)
	// Quiet says which keys have a quiet time; nil: all. Of several servers, only one may have it. Set it before the first use.
	Quiet func(key string) bool

	mu       sync.Mutex
	revision int64
	// tokens is above all reserved ones.
	tokens  int64
	history store.History
	// quiet is when the quiet time of this history is over.
	quiet   time.Time
	records map[string]cas.Record
	leases  map[store.LeaseID]*lease
	// mail is where the letters to an instance go.
	mail map[string]*mailbox
}

type lease struct {
	instance string
	ttl      time.Duration
	expires  time.Time
}

// NewServer makes an empty server.
func NewServer() *Server {
	return &Server{Limits: cas.UsualLimits, tokens: 1, history: uuid.New(), records: map[string]cas.Record{}, leases: map[store.LeaseID]*lease{}, mail: map[string]*mailbox{}}
}

// Copy is what a server had at some time.
type Copy struct {
	records map[string]cas.Record
	leases  map[store.LeaseID]*lease
}

// Copy copies the data, as a replica that misses what follows.
func (s *Server) Copy() *Copy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return copyOf(s.records, s.leases)
}

func copyOf(records map[string]cas.Record, leases map[store.LeaseID]*lease) *Copy {
	c := &Copy{maps.Clone(records), map[store.LeaseID]*lease{}}
	for id, l := range leases {
		same := *l
		c.leases[id] = &same
	}
	return c
}

// FailOver replaces the data by older data. It begins a new history, with a quiet time.
func (s *Server) FailOver(to *Copy, quiet time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to = copyOf(to.records, to.leases)
	s.records, s.leases = to.records, to.leases
	s.history, s.quiet = uuid.New(), time.Now().Add(quiet)
	s.revision, s.tokens = s.revision+1<<20, s.tokens+1<<30 // it does not know how many were forgotten
}

// Kill ends a lease, as its expiry would.
func (s *Server) Kill(id store.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, id)
}

// KillSome ends the leases that die says, which is asked in the order of their ids.
func (s *Server) KillSome(die func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.SortedFunc(maps.Keys(s.leases), func(a, b store.LeaseID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range ids {
		if die() {
			delete(s.leases, id)
		}
	}
}

// Records returns the number of records and their size.
func (s *Server) Records() (number, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		bytes += len(r.Data)
	}
	return len(s.records), bytes
}

// Leases returns the number of living leases.
func (s *Server) Leases() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id := range s.leases {
		if s.alive(id) != nil {
			n++
		}
	}
	return n
}

// Corrupt replaces the data of a record.
func (s *Server) Corrupt(key string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[key]
	s.revision++
	r.Key, r.Version, r.Base, r.Tokens, r.Data = key, s.revision, s.reserve(0), 0, data
	s.records[key] = r
}

// alive returns a living lease, or nil. A lease that has expired is gone for ever.
func (s *Server) alive(id store.LeaseID) *lease {
	l := s.leases[id]
	if l != nil && !time.Now().Before(l.expires) {
		delete(s.leases, id)
		return nil
	}
	return l
}

func (s *Server) load(keys []string, leases []store.LeaseID) ([]cas.Record, []cas.LeaseState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records := make([]cas.Record, len(keys))
	for i, key := range keys {
		records[i] = s.record(key)
		records[i].History = s.history
	}
	if between := s.Between; between != nil {
		s.Between = nil
		s.mu.Unlock()
		between()
		s.mu.Lock()
		for i := range records {
			records[i].States = s.states(records[i].Leases)
		}
	}
	return records, s.states(leases)
}

// reserve returns the first of n tokens.
func (s *Server) reserve(n int) int64 {
	first := s.tokens
	s.tokens += int64(n)
	return first
}

func (s *Server) record(key string) cas.Record {
	r := s.records[key]
	r.Key, r.Data, r.Leases = key, slices.Clone(r.Data), slices.Clone(r.Leases)
	r.States = s.states(r.Leases)
	return r
}

func (s *Server) states(leases []store.LeaseID) []cas.LeaseState {
	states := make([]cas.LeaseState, len(leases))
	for i, id := range leases {
		if l := s.alive(id); l != nil {
			states[i] = cas.LeaseState{Alive: true, Left: time.Until(l.expires)}
		}
	}
	return states
}

// swap carries one swap out, or not.
func (s *Server) swap(w cas.Swap) cas.Swapped {
	s.mu.Lock()
	defer s.mu.Unlock()
	dead := slices.ContainsFunc(w.Living, func(id store.LeaseID) bool { return s.alive(id) == nil })
	if dead || s.records[w.Key].Version != w.Version {
		return cas.Swapped{Record: s.record(w.Key)}
	}
	if left := time.Until(s.quiet); left > 0 && w.Tokens > 0 && (s.Quiet == nil || s.Quiet(w.Key)) {
		return cas.Swapped{Quiet: left, Record: s.record(w.Key)}
	}
	s.revision++
	r := cas.Record{Key: w.Key, Version: s.revision, Base: s.reserve(w.Tokens), Tokens: w.Tokens}
	before := s.record(w.Key)
	if w.Delete {
		r.Version = 0
		delete(s.records, w.Key)
	} else {
		stored := r
		stored.Data, stored.Leases = slices.Clone(w.Data), slices.Clone(w.Leases)
		s.records[w.Key] = stored
	}
	if s.Swapped != nil {
		s.Swapped(before, s.record(w.Key), func(id store.LeaseID) bool { return s.alive(id) != nil })
	}
	for _, l := range w.Letters {
		l.Base, l.Body = r.Base, slices.Clone(l.Body)
		if to := s.mail[l.To]; to != nil {
			to.post(l)
		}
	}
	return cas.Swapped{Done: true, Record: r}
}

func (s *Server) post(letters []cas.Letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range letters {
		l.Base, l.Body = 0, slices.Clone(l.Body)
		if to := s.mail[l.To]; to != nil {
			to.post(l)
		}
	}
}

func (s *Server) scan(prefix, after string, limit int) (found []cas.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(s.records)) {
		if len(found) >= limit {
			break
		}
		if strings.HasPrefix(key, prefix) && key > after {
			r := s.record(key)
			r.States = nil
			found = append(found, r)
		}
	}
	return found
}

func (s *Server) open(leases []cas.NewLease) store.History {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range leases {
		if before := s.alive(l.ID); before != nil {
			before.expires = time.Now().Add(l.TTL)
			continue
		}
		s.leases[l.ID] = &lease{l.Instance, l.TTL, time.Now().Add(l.TTL)}
	}
	return s.history
}

func (s *Server) renew(leases []store.LeaseID) (renewed []store.LeaseID, history store.History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range leases {
		if l := s.alive(id); l != nil {
			l.expires = time.Now().Add(l.ttl)
			renewed = append(renewed, id)
		}
	}
	return renewed, s.history
}

func (s *Server) revoke(leases []store.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range leases {
		delete(s.leases, id)
	}
}

func (s *Server) opened(instance string) (found []store.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.leases {
		if instance != "" && l.instance == instance && s.alive(id) != nil {
			found = append(found, id)
		}
	}
	return found
}
