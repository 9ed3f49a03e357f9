package postgres

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/locksidecar/locksidecar/store"
)

const (
	defaultMaxConns = 4
	minMaxConns     = 2 // one for renewals, one for all else
	defaultTimeout  = 5 * time.Second
)

// Config says which database, for whom, and how.
type Config struct {
	// URL is a connection string of pgx: postgres://…, several hosts allowed.
	URL      string
	Identity store.Identity
	// MaxConns is the most connections, those of renewals included: at least 2,
	// 4 when zero.
	MaxConns int
	// Timeout limits each operation, 5 s when zero.
	Timeout time.Duration
	// AutoMigrate: bring an old schema, or none, up to date. Otherwise the store
	// is not ready until somebody has.
	AutoMigrate bool
	// Logger hears of changes of the store's state. Nil: nobody does.
	Logger *slog.Logger
}

// Store keeps locks in PostgreSQL.
type Store struct {
	config Config
	pool   *pgxpool.Config // of the shared connections
	lane   *pgxpool.Config // of the renewals' connection
	log    *slog.Logger
	news   func(store.News)

	sweepAfter  time.Duration
	forgetAfter time.Duration

	mu      sync.Mutex
	started *running
	stopped bool

	state  atomic.Pointer[state]
	doubts chan struct{} // holds an element when the server is to be looked at again
}

// state is what is known of the server.
type state struct {
	// why the store is not ready, nil when it is.
	why error
	// usable: operations may try their luck. It stays once the schema was seen.
	usable bool
}

// running is what Start makes and Stop ends.
type running struct {
	shared, renewals *pgxpool.Pool
	cancel           context.CancelFunc
	ended            chan struct{}
}

var _ store.Store = (*Store)(nil)

// New makes a store. It fails on a configuration that can never work, without
// asking the server; its errors do not tell the password.
func New(config Config) (*Store, error) {
	if config.MaxConns == 0 {
		config.MaxConns = defaultMaxConns
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.MaxConns < minMaxConns {
		return nil, errors.New("store/postgres: MaxConns must be at least 2: renewals need a connection of their own")
	}
	s := &Store{
		config: config, news: func(store.News) {},
		sweepAfter: sweepAfter, forgetAfter: forgetAfter,
		doubts: make(chan struct{}, 1),
	}
	var err error
	if s.pool, err = poolConfig(config, config.MaxConns-1); err != nil {
		return nil, err
	}
	if s.lane, err = poolConfig(config, 1); err != nil {
		return nil, err
	}
	server := s.pool.ConnConfig
	s.log = config.Logger.With("store", "postgres", "host", server.Host, "port", server.Port, "database", server.Database)
	s.state.Store(&state{why: errNotStarted})
	return s, nil
}

// OnNews sets who hears of grants by hand-off.
func (s *Store) OnNews(hear func(store.News)) { s.news = hear }

// Traits: news of other instances' hand-offs does not arrive by itself.
func (s *Store) Traits() store.Traits { return store.Traits{Polls: true} }

// Ready is nil when the server was there when it was last looked at.
func (s *Store) Ready() error { return s.state.Load().why }

// Start connects in the background, for ever.
func (s *Store) Start(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if s.started != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background()) // Start's ctx limits Start only
	r := &running{cancel: cancel, ended: make(chan struct{})}
	var err error
	if r.shared, err = pgxpool.NewWithConfig(ctx, s.pool); err != nil {
		cancel()
		return err
	}
	if r.renewals, err = pgxpool.NewWithConfig(ctx, s.lane); err != nil {
		cancel()
		r.shared.Close()
		return err
	}
	s.started = r
	s.state.Store(&state{why: errNotReached})
	go s.watch(ctx, r)
	return nil
}

// Stop waits for operations that are under way, which Timeout limits, and closes
// all connections.
func (s *Store) Stop() {
	s.mu.Lock()
	r := s.started
	s.started, s.stopped = nil, true
	s.state.Store(&state{why: errStopped})
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.cancel()
	<-r.ended
	r.shared.Close()
	r.renewals.Close()
}
