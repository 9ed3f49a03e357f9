package mysql

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Config is the configuration of a backend.
type Config struct {
	cas.ServerConfig

	// MaxConns limits the connections; 4 if zero, and at least 3. The one in which the instance sleeps comes on top.
	MaxConns int
	// AutoMigrate: the tables are made or updated if they are missing or old.
	AutoMigrate bool
	// TooOld, if it is not nil, is called if the tables need a newer sidecar.
	TooOld func(error)
	// Quick: a failover forgets no grant, so it needs no quiet time.
	Quick bool
}

// Backend is a connection of one instance to a database.
type Backend struct {
	config Config
	target target
	cas.Readiness
	// span begins a request's span. Spans contain neither keys nor data.
	span func(ctx context.Context, name string) (context.Context, func(error))

	pools  pools
	server atomic.Pointer[string] // names the server in SQL; set by the first check
	latest latest
	quiet  cas.QuietTime
	// longest is the longest TTL of the leases that were opened here, in microseconds.
	longest atomic.Int64

	// used: operations were called since the last sweep.
	used atomic.Bool

	need     atomic.Int32 // of letters: see Expect
	expected chan struct{}
	naps     naps
	shut     string // the last lock that the connection for the mailbox got for a sleeper; of the goroutine that listens
	way      currentWay
	wakes    wakes
	steps    steps
}

var (
	_ cas.Backend     = (*Backend)(nil)
	_ cas.Expecter    = (*Backend)(nil)
	_ cas.Confirmer   = (*Backend)(nil)
	_ store.Described = (*Backend)(nil)
	_ store.Quieter   = (*Backend)(nil)
)

const (
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
	config.Timeout = cmp.Or(config.Timeout, cas.DefaultTimeout)
	if config.MaxConns == 0 {
		config.MaxConns = defaultMaxConns
	}
	b := &Backend{
		config: config, target: t, expected: make(chan struct{}, 1), naps: usualNaps, shut: "locksidecar:",
		Readiness: cas.Readiness{Name: "store/mysql", Log: config.Logger, Limit: config.Timeout},
	}
	b.Init(func(ctx context.Context) error {
		err := b.check(ctx)
		if err != nil {
			b.pools.drop()
		}
		return err
	}, errNotReached)
	b.span = tracing.Requests(config.Tracers, "mysql", harmless)
	b.pools = b.newPools()
	b.wakes.init()
	return b, nil
}

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	return b.Readiness.Start(ctx,
		func(ctx context.Context) { b.listen(ctx, deliver, lost) },
		b.wakeOthers,
		b.sweep)
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	b.Readiness.Stop()
	b.pools.close()
}

// Quiet implements [store.Quieter].
func (b *Backend) Quiet() time.Duration { return b.quiet.Left() }

// Limits implements [cas.Backend].
func (b *Backend) Limits() cas.Limits { return cas.UsualLimits }
