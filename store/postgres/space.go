package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/internal/fair"
	"github.com/locksidecar/locksidecar/store/internal/instances"
)

const (
	defaultMaxConns = 4
	minMaxConns     = 3 // one for renewals, one for LISTEN, one for all else
	defaultTimeout  = 5 * time.Second
)

// Config of a space.
type Config struct {
	// URL is a connection string of pgx. It may name several hosts.
	URL string
	// Again returns the URL for each new connection. User and password may change, hosts and database may
	// not. Nil: URL is used.
	Again func() (string, error)
	// MaxConns limits all connections: at least 3; zero: 4.
	MaxConns int
	// Timeout limits each operation; zero: 5 s.
	Timeout time.Duration
	// AutoMigrate: the store migrates an old schema. Otherwise it waits until an operator has done so.
	AutoMigrate bool
	// TooOld is called, perhaps repeatedly, if the schema needs a newer package. After that the store is
	// never ready and grants nothing, but it still renews and releases. Nil: no call.
	TooOld func(error)
	// Listen says whether the store receives hand-offs of other instances by LISTEN. Empty: auto.
	Listen Listen
	// ListenURL is the URL for LISTEN, if URL leads through a pooler that gives each transaction to another
	// session. Empty: URL is used. ListenAgain is to ListenURL what Again is to URL.
	ListenURL   string
	ListenAgain func() (string, error)
	// Failover says whether a quiet time follows a failover: see [store.Failover]. Empty: auto.
	Failover store.Failover
	// ForgetAfter is how long a free key keeps its row: at least ten Timeouts; zero: an hour.
	ForgetAfter time.Duration
	// Logger receives changes of the store's state. Nil: no logs.
	Logger *slog.Logger
	// Tracers makes a span of each statement of a recorded call. Nil: no spans.
	Tracers trace.TracerProvider
	// Metrics counts and times statements. Nil: no metrics.
	Metrics *metrics.Store
}

// Space is what the stores of one process share: the connections, the listener, the renewals, the notifier, and what is known of the
// server. Each store that it opens is a view: see [Store]. Views take the main connections in turn, so a view with many calls delays a call of
// another one by what runs then, and by a statement of each view that waits. A renewal that waits for the locked row of its lease has a turn of its own.
type Space struct {
	config Config
	pool   *pgxpool.Config // for the main connections
	lane   *pgxpool.Config // for the renewals' connection
	server *server
	direct *server // for the listener's connection; nil: the same as server
	log    *slog.Logger
	// metrics and tracer can be nil.
	metrics recorder
	tracer  pgx.QueryTracer
	// own carries out what the space does for itself. It has no identity and no news.
	own *Store

	lockTimeout time.Duration
	// longCommit limits the duration of a release that notifies in full. A release in which this package
	// cancelled the wait for a standby took longer.
	longCommit time.Duration
	// See sweep.go.
	sweepAfter, forgetAfter, sweepLap, sweepBudget time.Duration

	mu      sync.Mutex
	started *running
	stopped bool

	views        instances.Running
	places       *fair.Places[user] // on the main connections
	lockedRows   lockedRows
	clock        clock
	primaries    primaries
	listener     *listener
	together     *renewalsTogether
	notifier     *notifier
	pooled       atomic.Bool // see isPooled
	readsOnly    atomic.Bool // the role may only read: see reader.go
	said         sync.Map    // messages that were logged once
	lockedWarned nowAndThen
	swept        nowAndThen

	unflushed *unflushed
	quiet     quiet
	state     atomic.Pointer[state]
	doubts    chan struct{} // has an element if the server should be checked
	// counting is held by the one Stats call that reads now.
	counting chan struct{}
}

type state struct {
	// why is the reason why the store is not ready, or nil.
	why error
	// usable: operations may run. It becomes true when the schema was seen, and false if the schema is
	// replaced by an older one, because statements could have another meaning in a restored backup.
	usable bool
}

type running struct {
	main, renewalPool *pgxpool.Pool
	cancel            context.CancelFunc
	ended             sync.WaitGroup
}

var _ store.Space = (*Space)(nil)

// NewSpace makes a space without connecting to a server. It fails if the configuration can never work. Its
// errors do not contain the password.
func NewSpace(config Config) (*Space, error) {
	conns, err := config.complete()
	if err != nil {
		return nil, err
	}
	s := &Space{
		config:      config,
		lockTimeout: lockTimeout(config.Timeout), longCommit: lockTimeout(config.Timeout),
		sweepAfter: sweepAfter, forgetAfter: config.ForgetAfter, sweepLap: min(sweepLap, config.ForgetAfter/6), sweepBudget: sweepBudget,
		doubts: make(chan struct{}, 1), counting: make(chan struct{}, 1),
	}
	if config.Metrics != nil {
		s.metrics = config.Metrics
	}
	if config.Tracers != nil {
		s.tracer = newTracer(config.Tracers)
	}
	s.pooled.Store(config.Listen == ListenNever || config.ListenURL != "")
	s.listener, s.together, s.notifier, s.unflushed = newListener(s), newRenewalsTogether(s), newNotifier(s), newUnflushed()
	s.own = s.open(store.Identity{})
	s.own.phase = phaseStarted
	if s.lockedRows, err = newLockedRows(); err != nil {
		return nil, err
	}
	if s.pool, err = s.poolConfig(conns); err != nil {
		return nil, err
	}
	s.places = fair.New[user](conns)
	if s.lane, err = s.poolConfig(1); err != nil {
		return nil, err
	}
	if s.server, err = newServer(s, "all connections", config.URL, config.Again, s.follow); err != nil {
		return nil, err
	}
	if config.ListenURL != "" {
		if s.direct, err = newServer(s, "the connection that listens", config.ListenURL, config.ListenAgain, s.primaries.refuse); err != nil {
			return nil, err
		}
	}
	first := s.server.good
	s.log = config.Logger.With("store", "postgres", "host", first.Host, "port", first.Port, "database", first.Database)
	s.state.Store(&state{why: errNotStarted})
	return s, nil
}

// complete sets the defaults and checks the configuration. It returns the number of main connections.
func (c *Config) complete() (conns int, err error) {
	if c.MaxConns == 0 {
		c.MaxConns = defaultMaxConns
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.ForgetAfter == 0 {
		c.ForgetAfter = max(forgetAfter, forgetTimeouts*c.Timeout)
	}
	if c.ForgetAfter < forgetTimeouts*c.Timeout {
		return 0, fmt.Errorf("store/postgres: ForgetAfter is %s; it must be at least %d times Timeout, which is %s",
			c.ForgetAfter, forgetTimeouts, c.Timeout)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.TooOld == nil {
		c.TooOld = func(error) {}
	}
	if c.MaxConns < minMaxConns {
		return 0, errors.New("store/postgres: MaxConns must be at least 3: renewals and LISTEN need a connection each")
	}
	switch c.Failover {
	case "", store.FailoverQuiet, store.FailoverQuick:
	default:
		return 0, fmt.Errorf("store/postgres: Failover is %q; it must be quiet, quick or empty", c.Failover)
	}
	conns = c.MaxConns - 1
	switch c.Listen {
	case "":
		c.Listen = ListenAuto
		conns--
	case ListenAuto, ListenAlways:
		conns--
	case ListenNever:
	default:
		return 0, fmt.Errorf("store/postgres: Listen is %q; it must be auto, always or never", c.Listen)
	}
	if c.Listen == ListenNever && c.ListenURL != "" {
		return 0, errors.New("store/postgres: ListenURL is set, and Listen is never")
	}
	return conns, nil
}

// Start connects in the background, and tries until Stop.
func (s *Space) Start(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if s.started != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background()) // Start's ctx limits Start only
	r := &running{cancel: cancel}
	var err error
	if r.main, err = pgxpool.NewWithConfig(ctx, s.pool); err != nil {
		cancel()
		return err
	}
	if r.renewalPool, err = pgxpool.NewWithConfig(ctx, s.lane); err != nil {
		cancel()
		r.main.Close()
		return err
	}
	s.started = r
	s.warnUnverified(s.server.good)
	if s.direct != nil {
		s.warnUnverified(s.direct.good)
	}
	if s.metrics != nil {
		s.metrics.Observe(s.metricsState)
	}
	s.state.Store(&state{why: errNotReached})
	r.ended.Go(func() { s.watch(ctx, r) })
	r.ended.Go(func() { s.listener.run(ctx) })
	r.ended.Go(func() { s.resend(ctx) })
	return nil
}

// Stop sends the remaining notifications, waits for operations in flight (at most Timeout), and disconnects.
func (s *Space) Stop() {
	silence, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
	defer cancel()
	s.notifier.drain(silence)
	s.mu.Lock()
	r := s.started
	s.started, s.stopped = nil, true
	s.state.Store(&state{why: errStopped})
	s.mu.Unlock()
	if r == nil {
		return
	}
	r.cancel()
	r.ended.Wait()
	r.main.Close()
	r.renewalPool.Close()
}

// pools returns what runs now, or nil.
func (s *Space) pools() *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started
}
