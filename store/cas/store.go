package cas

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/internal/gather"
	"github.com/locksidecar/locksidecar/store/key"
)

const (
	// cachedRecords limits the records that the views of a space remember, and cachedBytes the size of each: together 16 MB, because
	// a record is kept as data and read. A record saves one request.
	cachedRecords, cachedBytes = 4096, 2 << 10
	// defaultLongestQueue keeps a record small: a waiter needs about 150 bytes.
	defaultLongestQueue = 512
	// discardTimeout limits the revocation of leases that nothing needs, and leaveTimeout that at a stop. They end by themselves,
	// too.
	discardTimeout, leaveTimeout = 5 * time.Second, 2 * time.Second
)

var (
	errNotStarted = errors.New("not started")
	errStopped    = errors.New("stopped")
)

const (
	fresh int32 = iota
	started
	stopped
)

// Config says how the views of a [Space] work.
type Config struct {
	// LongestQueue limits the waiters of a key; zero means 512. More than half of TokensPerSwap is not possible, because one
	// release may grant shares to all of them.
	LongestQueue int
	// SweepTerm is how long one instance stays elected to sweep; zero means 25 minutes. If it is negative, each
	// Sweep sweeps.
	SweepTerm time.Duration
	Logger    *slog.Logger
}

// Store is one instance's view of the data on a server. It implements [store.Store].
type Store struct {
	space   *Space
	cfg     Config
	me      *key.Instance
	backend Backend
	// requests is the backend for all that waits for a connection: see limited.
	requests Backend
	limits   Limits
	// prefix is that of the keys of this namespace.
	prefix string
	log    *slog.Logger
	start  time.Time
	news   func(store.News)
	status atomic.Int32
	life   sync.Mutex // of Start and Stop, which run one after the other
	stop   chan struct{}
	work   sync.WaitGroup
	cache  *lru.Cache[string, *remembered] // that of the space

	lastSignal atomic.Int64
	part       int64

	mu  sync.Mutex
	own map[store.LeaseID]*ownLease
	// signalled are keys with signals for holders of this instance, or perhaps with signals.
	signalled map[string]struct{}
	quiet     *QuietTime // that of the space
	// doubted are keys of swaps with an unknown outcome, with the versions of the records that the swaps replace.
	doubted map[string][]int64
	// awaited are keys for which attempts of this instance wait, or which it watches. Only for an [Expecter].
	awaited map[string]awaited
	// keeping: keys may be kept here. Only for an [Expecter].
	keeping bool
	// ways are keys that this instance leaves to others for a moment.
	ways map[string]way
	// useless are leases to be revoked.
	useless []store.LeaseID
	// elected are the elections that this instance may have won.
	elected map[string]struct{}
	wake    chan struct{}

	// sweeper guards sweeping.
	sweeper  sync.Mutex
	sweeping sightings
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Tokens    = (*Store)(nil)
	_ store.Described = (*Store)(nil)
	_ store.Quieter   = (*Store)(nil)
	_ store.Joiner    = (*Store)(nil)
	_ store.Keeper    = (*Store)(nil)
)

// complete sets the defaults.
func (c *Config) complete() {
	if c.LongestQueue <= 0 {
		c.LongestQueue = defaultLongestQueue
	}
	c.LongestQueue = min(c.LongestQueue, TokensPerSwap/2)
	if c.SweepTerm == 0 {
		c.SweepTerm = sweepTerm
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (s *Space) open(backend Backend, id store.Identity) *Store {
	view := &Store{
		requests: backend,
		space:    s, cfg: s.cfg, quiet: &s.quiet, backend: backend, limits: backend.Limits(), log: s.cfg.Logger,
		me:     &key.Instance{Name: id.Instance, Pod: id.Pod},
		prefix: url.PathEscape(id.Namespace) + "/",
		start:  time.Now().Add(-1), // a moment is above zero
		news:   func(store.News) {},
		part:   rand.Int64N(1 << partBits), //nolint:gosec // tells the signals of instances apart
		stop:   make(chan struct{}), wake: make(chan struct{}, 1),
		cache: s.cache,
		own:   map[store.LeaseID]*ownLease{}, signalled: map[string]struct{}{}, doubted: map[string][]int64{},
		awaited: map[string]awaited{}, ways: map[string]way{}, elected: map[string]struct{}{},
	}
	if s.places != nil {
		view.requests = &inTurn{backend, view}
	}
	return view
}

// Start connects.
func (s *Store) Start(ctx context.Context, news func(store.News)) error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.status.Load() == fresh && news != nil {
		s.news = news
	}
	if !s.status.CompareAndSwap(fresh, started) {
		if s.status.Load() == stopped {
			return &store.Error{Op: "Start", Err: errStopped}
		}
		return nil
	}
	err := s.space.views.Begin(s.me.Name, s)
	if err == nil {
		err = s.backend.Start(ctx, s.receive, s.lettersLost)
	}
	if err != nil {
		s.status.Store(stopped)
		s.space.views.End(s.me.Name, s)
		return &store.Error{Op: "Start", Err: err}
	}
	s.work.Go(s.clean)
	return nil
}

// Stop resigns from elections, revokes the leases that nothing needs, and ends the background work. The instance's locks stay
// held until its leases end.
func (s *Store) Stop() {
	s.life.Lock()
	defer s.life.Unlock()
	if s.status.Load() == started {
		s.resign()
	}
	if was := s.status.Swap(stopped); was != stopped {
		close(s.stop)
	}
	s.work.Wait() // for the last revocation, which needs the backend
	s.backend.Stop()
	s.space.views.End(s.me.Name, s)
}

// Ready is nil if operations may succeed now.
func (s *Store) Ready() error {
	switch s.status.Load() {
	case fresh:
		return errNotStarted
	case stopped:
		return errStopped
	default:
		return s.backend.Ready()
	}
}

// Traits says that a lease which has expired is dead, and whether letters arrive.
func (s *Store) Traits() store.Traits {
	_, onRequest := s.backend.(Expecter)
	return store.Traits{
		Final: true, LongestQueue: s.cfg.LongestQueue, Hears: s.Ready() == nil && s.backend.Hears(), HearsAlways: !onRequest,
	}
}

// Details is what the backend tells about its server, if it does.
func (s *Store) Details() map[string]string {
	if d, ok := s.backend.(store.Described); ok {
		return d.Details()
	}
	return nil
}

func (s *Store) usable(ctx context.Context, op string) error {
	if err := s.Ready(); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	return nil
}

// OpenLeases makes renewed leases.
func (s *Store) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	if err := s.usable(ctx, "OpenLeases"); err != nil || len(leases) == 0 {
		return err
	}
	sent, opens := time.Now(), make([]NewLease, len(leases))
	for i, l := range leases {
		opens[i] = NewLease{NewLease: l, Instance: s.me.Name}
	}
	history, err := s.requests.OpenLeases(ctx, opens)
	if err != nil {
		return err
	}
	s.opened(leases, sent, history)
	return nil
}

// Renew extends the leases that are alive.
func (s *Store) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	if err := s.usable(ctx, "Renew"); err != nil || len(leases) == 0 {
		return store.Renewal{}, err
	}
	sent := time.Now()
	renewed, history, err := s.extend(ctx, leases)
	asked := leases
	if err != nil {
		asked = renewed
	}
	r := store.Renewal{Renewed: renewed, History: history}
	r.Signals, r.Reconcile = s.noteRenewal(asked, renewed, sent, history)
	return r, err
}

// extend extends leases of this view, by a request that it shares with others if the server can do that. An error is that of the request, but not
// if only leases of others were not renewed.
func (s *Store) extend(ctx context.Context, leases []store.LeaseID) (renewed []store.LeaseID, history store.History, err error) {
	lane := s.space.renewals
	if lane == nil {
		return s.backend.Renew(ctx, leases)
	}
	all, err := lane.Ask(ctx, leases)
	if left, ok := errors.AsType[*gather.LeftError](err); ok {
		return nil, history, &store.Error{Op: "Renew", Err: left, Unknown: left.Begun}
	}
	for _, id := range leases {
		if _, ok := all.leases[id]; ok {
			renewed = append(renewed, id)
		}
	}
	if len(renewed) == len(leases) {
		err = nil
	}
	return renewed, all.history, err
}

// Revoke ends leases, and hands off what they held. Records are visited after the end, so an asker that is queued
// meanwhile either is found, or finds the dead holder.
func (s *Store) Revoke(ctx context.Context, leases []store.LeaseID) error {
	if err := s.usable(ctx, "Revoke"); err != nil || len(leases) == 0 {
		return err
	}
	return s.revoke(ctx, "Revoke", leases)
}

func (s *Store) revoke(ctx context.Context, op string, leases []store.LeaseID) error {
	if err := s.requests.Revoke(ctx, leases); err != nil {
		return err
	}
	// Now no further swap relies on these leases, so no further key comes.
	names, all := s.under(leases, false)
	var err error
	if !all {
		names, err = s.naming(ctx, op, leases)
	}
	if err == nil {
		err = s.visit(ctx, op, names, nil)
	}
	if err != nil {
		return Failed(op, err, true) // the leases have ended
	}
	s.under(leases, true)
	return nil
}

// discard revokes leases that nothing needs, later.
func (s *Store) discard(leases ...store.LeaseID) {
	if len(leases) == 0 {
		return
	}
	s.mu.Lock()
	s.useless = append(s.useless, leases...)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// clean revokes them until Stop, and then those that are left.
func (s *Store) clean() {
	for {
		select {
		case <-s.stop:
			s.revokeUseless(leaveTimeout)
			return
		case <-s.wake:
			s.revokeUseless(discardTimeout)
		}
	}
}

func (s *Store) revokeUseless(within time.Duration) {
	s.mu.Lock()
	leases := s.useless
	s.useless = nil
	s.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := s.requests.Revoke(ctx, leases); err != nil {
		s.log.Debug("leases without use were not revoked, they will expire", "leases", len(leases), "error", err)
	}
}
