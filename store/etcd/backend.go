package etcd

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Config is the configuration of a backend.
type Config = cas.ServerConfig

// Backend is a connection of one instance to etcd.
type Backend struct {
	config Config
	target target
	layout
	cas.Readiness
	// span begins a request's span. Spans contain neither keys nor data.
	span func(ctx context.Context, name string) (context.Context, func(error))

	conn atomic.Pointer[conn]
	left *lru.Cache[store.LeaseID, leaseEnd]
	// compacts: the servers have compacted, or the warning that they have not was logged. Only checks use it.
	compacts bool

	newest    cas.Highest // the highest revision seen
	floor     floor
	contended atomic.Int64 // above zero: swaps go into nested transactions (see calmAfter)
	// first is the revision after the first successful check. It is set before reached is closed.
	first   int64
	reached chan struct{}
	// hears: the watch for letters stands.
	hears atomic.Bool
}

var _ cas.Backend = (*Backend)(nil)

const (
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
	config.Timeout = cmp.Or(config.Timeout, cas.DefaultTimeout)
	left, err := lru.New[store.LeaseID, leaseEnd](leasesKnown)
	if err != nil {
		return nil, fmt.Errorf("store/etcd: %w", err)
	}
	b := &Backend{
		config: config, target: t, layout: newLayout(t.prefix, config.Instance), left: left, reached: make(chan struct{}),
		Readiness: cas.Readiness{Name: "store/etcd", Log: config.Logger, Limit: patience + config.Timeout, Every: checkEvery},
	}
	b.Init(b.check, errNotReached)
	b.span = tracing.Requests(config.Tracers, "etcd", error.Error)
	return b, nil
}

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	return b.Readiness.Start(ctx,
		func(ctx context.Context) { b.listen(ctx, deliver, lost) },
		b.sweep)
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	if !b.Readiness.Stop() {
		return
	}
	c := b.conn.Load()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = c.txn(ctx, removeAll(b.mailbox)) // otherwise another instance does it
	c.close()
}

// Hears implements [cas.Backend]. A connection that is cut without a word ends with the pings, and sooner if there is something to send. A server
// without a leader ends the watch.
func (b *Backend) Hears() bool { return b.hears.Load() }

// Limits implements [cas.Backend].
func (b *Backend) Limits() cas.Limits { return cas.UsualLimits }
