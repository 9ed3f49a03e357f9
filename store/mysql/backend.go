package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Config is the configuration of a backend.
type Config struct {
	// URL is mysql://, as docs/operations.md describes it. Again, if it is not nil, returns the URL as it is now. It is called
	// before each connection, because a password may be replaced.
	URL   string
	Again func() (string, error)
	// Instance is the name of this one, to which letters are written: at most 512 bytes.
	Instance string
	// MaxConns limits the connections; 4 if zero, and at least 3.
	MaxConns int
	// Timeout limits one operation; 5 seconds if zero.
	Timeout time.Duration
	// AutoMigrate: the tables are made or updated if they are missing or old.
	AutoMigrate bool
	// TooOld, if it is not nil, is called if the tables need a newer sidecar.
	TooOld func(error)
	// Quick: a failover forgets no grant, so it needs no quiet time.
	Quick bool
	// Logger, Tracers and Metrics may be nil.
	Logger  *slog.Logger
	Tracers trace.TracerProvider
	Metrics *metrics.Store
}

// Backend is a connection of one instance to a database.
type Backend struct {
	config Config
	target target
	log    *slog.Logger
	tracer trace.Tracer // nil: none

	pools  pools
	server atomic.Pointer[string] // names the server in SQL; set by the first check
	latest latest
	// longest is the longest TTL of the leases that were opened here, in microseconds.
	longest atomic.Int64
	doubts  chan struct{}
	said    map[string]bool // warnings that were logged; of the goroutine that checks

	// used: operations were called since the last sweep.
	used     atomic.Bool
	expected chan struct{}
	every    atomic.Int64 // the time between two looks into the mailbox; 0: none

	mu      sync.Mutex
	why     error             // why operations cannot succeed now
	details map[string]string // facts about the server; never changed, but replaced
	end     context.CancelFunc
	work    sync.WaitGroup
}

var (
	_ cas.Backend     = (*Backend)(nil)
	_ cas.Expecter    = (*Backend)(nil)
	_ cas.Confirmer   = (*Backend)(nil)
	_ store.Described = (*Backend)(nil)
)

const (
	defaultTimeout  = 5 * time.Second
	defaultMaxConns = 4
)

// New returns a backend that Start connects. It fails if the configuration can never work. The error contains no
// password.
func New(config Config) (*Backend, error) {
	t, err := parseURL(config.URL)
	if err != nil {
		return nil, fmt.Errorf("store/mysql: %w", err)
	}
	if len(config.Instance) > maxMailbox {
		return nil, fmt.Errorf("store/mysql: the instance's name has %d bytes; at most %d are possible", len(config.Instance), maxMailbox)
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	if config.MaxConns == 0 {
		config.MaxConns = defaultMaxConns
	}
	b := &Backend{
		config: config, target: t, log: config.Logger, doubts: make(chan struct{}, 1), expected: make(chan struct{}, 1),
		said: map[string]bool{}, why: errNotReached,
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if config.Tracers != nil {
		b.tracer = config.Tracers.Tracer("github.com/locksidecar/locksidecar/store/mysql")
	}
	b.pools = b.newPools()
	return b, nil
}

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	running, end := context.WithCancel(context.Background())
	b.mu.Lock()
	if b.end != nil {
		b.mu.Unlock()
		end()
		return errors.New("store/mysql: started twice")
	}
	b.end = end
	b.mu.Unlock()
	first, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	b.become(b.check(first))
	b.work.Go(func() { b.watchServer(running) })
	b.work.Go(func() { b.listen(running, deliver, lost) })
	b.work.Go(func() { b.sweep(running) })
	return nil
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	b.mu.Lock()
	end, stopped := b.end, errors.Is(b.why, errStopped)
	b.why = errStopped
	b.mu.Unlock()
	if end != nil && !stopped {
		end()
	}
	b.work.Wait()
	b.pools.close()
}

// Ready implements [cas.Backend].
func (b *Backend) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why == nil {
		return nil
	}
	return &store.Error{Op: "ready", Err: b.why}
}

// become notes why the server cannot be used, or that it can, and logs each change.
func (b *Backend) become(why error) {
	b.mu.Lock()
	was := b.why
	if errors.Is(was, errStopped) {
		b.mu.Unlock()
		return
	}
	b.why = why
	b.mu.Unlock()
	switch {
	case why == nil && was != nil:
		b.log.Info("the store is ready")
	case why != nil && (was == nil || was.Error() != why.Error()):
		b.log.Warn("the store is not ready", "error", why)
	}
}

// doubt requests a check of the server, and returns at once.
func (b *Backend) doubt() {
	select {
	case b.doubts <- struct{}{}:
	default:
	}
}
