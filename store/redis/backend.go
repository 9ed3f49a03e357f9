package redis

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Config is the configuration of a backend.
type Config struct {
	// URL is described in docs/operations.md. Again, if it is not nil, returns the URL as it is now, because a password may
	// be replaced.
	URL   string
	Again func() (string, error)
	// Instance is the name of this one, to which letters are written.
	Instance string
	// Timeout limits one operation; 5 seconds if zero.
	Timeout time.Duration
	// MaxConns is the number of connections to a server, without that for letters; 3 if zero.
	MaxConns int
	// TTL is the usual TTL of this instance's leases. Quick: after a failover, grants of this instance that may have been
	// forgotten are not waited for.
	TTL   time.Duration
	Quick bool
	// Logger, Tracers and Metrics may be nil.
	Logger  *slog.Logger
	Tracers trace.TracerProvider
	Metrics *metrics.Store
}

// Backend is a connection of one instance to Redis.
type Backend struct {
	config Config
	target target
	log    *slog.Logger
	tracer trace.Tracer // nil: none
	client goredis.UniversalClient
	parts  []partition
	doubts chan struct{}

	mu      sync.Mutex
	why     error // why operations cannot succeed now
	heard   bool  // letters arrive, or have arrived
	deaf    error // why not
	details map[string]string
	end     context.CancelFunc
	work    sync.WaitGroup
	history histories
	// again makes the listener connect again.
	again atomic.Pointer[context.CancelFunc]
}

var (
	_ cas.Backend     = (*Backend)(nil)
	_ store.Described = (*Backend)(nil)
)

const (
	defaultTimeout  = 5 * time.Second
	defaultMaxConns = 3
	// bufferSize of a connection's reader and writer, in bytes. The library's default is 32 KiB each.
	bufferSize = 8 << 10
)

// New returns a backend that Start connects. It fails if the configuration can never work. The error contains no
// password.
func New(config Config) (*Backend, error) {
	t, err := parse(config.URL)
	if err != nil {
		return nil, &configError{err}
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	if config.MaxConns <= 0 {
		config.MaxConns = defaultMaxConns
	}
	b := &Backend{
		config: config, target: t, log: config.Logger, parts: partitions(1),
		doubts: make(chan struct{}, 1), why: errNotReached,
	}
	if t.kind == cluster {
		b.parts = partitions(len(tags))
	}
	b.history.of = make([]string, len(b.parts))
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if config.Tracers != nil {
		b.tracer = config.Tracers.Tracer("github.com/locksidecar/locksidecar/store/redis")
	}
	return b, nil
}

type configError struct{ error }

func (e *configError) Error() string { return "store/redis: " + e.error.Error() }

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	running, end := context.WithCancel(context.Background())
	b.mu.Lock()
	if b.end != nil || errors.Is(b.why, errStopped) {
		b.mu.Unlock()
		end()
		return errors.New("store/redis: started twice, or stopped")
	}
	b.end = end
	b.mu.Unlock()
	b.client = b.connect()
	first, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	b.work.Go(func() { b.listen(running, deliver, lost) })
	b.become(b.check(first))
	b.work.Go(func() { b.watchServers(running) })
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
	if end != nil && !stopped {
		_ = b.client.Close()
	}
}

// Ready implements [cas.Backend].
func (b *Backend) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.why == nil && !b.heard {
		return &store.Error{Op: "ready", Err: errors.Join(errNotHeard, b.deaf)}
	}
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
