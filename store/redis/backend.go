package redis

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Config is the configuration of a backend.
type Config struct {
	cas.ServerConfig

	// MaxConns is the number of connections to a server, without that for letters; 3 if zero.
	MaxConns int
	// TTL is the usual TTL of this instance's leases. Quick: after a failover, grants of this instance that may have been
	// forgotten are not waited for.
	TTL   time.Duration
	Quick bool
}

// Backend is a connection of one instance to Redis.
type Backend struct {
	config Config
	target target
	cas.Readiness
	// span begins a request's span. Spans contain neither keys nor data.
	span   func(ctx context.Context, name string) (context.Context, func(error))
	client goredis.UniversalClient
	parts  []partition
	quiet  []cas.QuietTime // of the partitions

	mu      sync.Mutex
	listens bool  // letters arrive, or have arrived
	deaf    error // why not
	// heard is when the listener heard something last: a letter, or the answer to a ping. It is nil while it has no connection.
	heard   atomic.Pointer[time.Time]
	history histories
	// again makes the listener connect again.
	again atomic.Pointer[context.CancelFunc]
}

var (
	_ cas.Backend     = (*Backend)(nil)
	_ store.Described = (*Backend)(nil)
	_ store.Quieter   = (*Backend)(nil)
)

const (
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
	config.Timeout = cmp.Or(config.Timeout, cas.DefaultTimeout)
	if config.MaxConns <= 0 {
		config.MaxConns = defaultMaxConns
	}
	b := &Backend{
		config: config, target: t, parts: partitions(1),
		Readiness: cas.Readiness{Name: "store/redis", Log: config.Logger, Limit: config.Timeout, Every: checkEvery},
	}
	b.Init(b.check, errNotReached)
	if t.kind == cluster {
		b.parts = partitions(len(tags))
	}
	b.history.of = make([]string, len(b.parts))
	b.quiet = make([]cas.QuietTime, len(b.parts))
	b.span = tracing.Requests(config.Tracers, "redis", error.Error)
	b.client = b.connect()
	return b, nil
}

type configError struct{ error }

func (e *configError) Error() string { return "store/redis: " + e.error.Error() }

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	return b.Readiness.Start(ctx, func(ctx context.Context) { b.listen(ctx, deliver, lost) })
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	b.Readiness.Stop()
	_ = b.client.Close()
}

// Ready implements [cas.Backend].
func (b *Backend) Ready() error {
	if err := b.Readiness.Ready(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.listens {
		return &store.Error{Op: "ready", Err: errors.Join(errNotHeard, b.deaf)}
	}
	return nil
}

// Hears implements [cas.Backend].
func (b *Backend) Hears() bool {
	heard := b.heard.Load()
	return heard != nil && time.Since(*heard) < pingAfter+pongWithin
}

// Quiet implements [store.Quieter].
func (b *Backend) Quiet() (left time.Duration) {
	for i := range b.quiet {
		left = max(left, b.quiet[i].Left())
	}
	return left
}

// Limits implements [cas.Backend].
func (b *Backend) Limits() cas.Limits { return cas.UsualLimits }
