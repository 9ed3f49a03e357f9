package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Config is the configuration of a backend.
type Config struct {
	// URL is etcd:// or etcds://, as docs/operations.md describes it. Again, if it is not nil, returns the URL as it
	// is now, because a password may be replaced.
	URL   string
	Again func() (string, error)
	// Instance is the name of this one, to which letters are written.
	Instance string
	// Timeout limits one operation; 5 seconds if zero.
	Timeout time.Duration
	// Logger, Tracers and Metrics may be nil.
	Logger  *slog.Logger
	Tracers trace.TracerProvider
	Metrics *metrics.Store
}

// Backend is a connection of one instance to etcd.
type Backend struct {
	config Config
	target target
	layout
	log    *slog.Logger
	tracer trace.Tracer // nil: none

	conn   atomic.Pointer[conn]
	left   *lru.Cache[store.LeaseID, leaseEnd]
	doubts chan struct{}
	said   map[string]bool // warnings that were logged; of the goroutine that checks

	mu   sync.Mutex
	why  error // why operations cannot succeed now
	end  context.CancelFunc
	work sync.WaitGroup

	newest    atomic.Int64 // the highest revision seen
	floor     floor
	contended atomic.Int64 // above zero: swaps go into nested transactions (see calmAfter)
	// first is the revision after the first successful check. It is set before reached is closed.
	first   int64
	reached chan struct{}
}

var _ cas.Backend = (*Backend)(nil)

const (
	defaultTimeout = 5 * time.Second
	// leasesKnown is for how many leases the end is remembered.
	leasesKnown = 4096
)

// New returns a backend that Start connects. It fails if the configuration can never work. The error contains no
// password.
func New(config Config) (*Backend, error) {
	t, err := parse(config.URL)
	if err != nil {
		return nil, fmt.Errorf("store/etcd: %w", err)
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	left, err := lru.New[store.LeaseID, leaseEnd](leasesKnown)
	if err != nil {
		return nil, fmt.Errorf("store/etcd: %w", err)
	}
	b := &Backend{
		config: config, target: t, layout: newLayout(t.prefix, config.Instance), log: config.Logger,
		left: left, doubts: make(chan struct{}, 1), reached: make(chan struct{}), said: map[string]bool{}, why: errNotReached,
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if config.Tracers != nil {
		b.tracer = config.Tracers.Tracer("github.com/locksidecar/locksidecar/store/etcd")
	}
	return b, nil
}

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	running, end := context.WithCancel(context.Background())
	b.mu.Lock()
	if b.end != nil {
		b.mu.Unlock()
		end()
		return errors.New("store/etcd: started twice")
	}
	b.end = end
	b.mu.Unlock()
	first, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	b.become(b.check(first))
	b.work.Go(func() { b.watchServers(running) })
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
	if end == nil || stopped {
		b.work.Wait()
		return
	}
	end()
	b.work.Wait()
	c := b.conn.Load()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = c.txn(ctx, removeAll(b.mailbox)) // otherwise another instance does it
	c.close()
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

// become notes why the servers cannot be used, or that they can, and logs each change.
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

// doubt requests a check of the servers, and returns at once.
func (b *Backend) doubt() {
	select {
	case b.doubts <- struct{}{}:
	default:
	}
}
