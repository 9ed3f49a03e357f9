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

// Server is what the instances of a process share: a connection, and what is known of the servers.
type Server struct {
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
}

// Backend is one instance's part of a [Server].
type Backend struct {
	*Server
	instance, mailbox string
	work              cas.Work
	// hears: the watch for letters stands.
	hears atomic.Bool
}

var (
	_ cas.Backend = (*Backend)(nil)
	_ cas.Server  = (*Server)(nil)
)

const (
	// leasesKnown is for how many leases the end is remembered.
	leasesKnown = 4096
)

// NewServer returns a server that Start connects. It fails if the configuration can never work. The error contains no password.
func NewServer(config Config) (*Server, error) {
	t, err := parse(config.URL)
	if err != nil {
		return nil, fmt.Errorf("store/etcd: %w", err)
	}
	config.Timeout = cmp.Or(config.Timeout, cas.DefaultTimeout)
	left, err := lru.New[store.LeaseID, leaseEnd](leasesKnown)
	if err != nil {
		return nil, fmt.Errorf("store/etcd: %w", err)
	}
	b := &Server{
		config: config, target: t, layout: newLayout(t.prefix), left: left, reached: make(chan struct{}),
		Readiness: cas.Readiness{Name: "store/etcd", Log: config.Logger, Limit: patience + config.Timeout, Every: checkEvery},
	}
	b.Init(b.check, errNotReached)
	b.span = tracing.Requests(config.Tracers, "etcd", error.Error)
	return b, nil
}

// Start implements [cas.Server].
func (b *Server) Start(ctx context.Context) error { return b.Readiness.Start(ctx, b.sweep) }

// Stop implements [cas.Server].
func (b *Server) Stop() {
	if !b.Readiness.Stop() {
		return
	}
	if c := b.conn.Load(); c != nil {
		c.close()
	}
}

// View implements [cas.Server].
func (b *Server) View(instance string) cas.Backend { return b.view(instance) }

func (b *Server) view(instance string) *Backend {
	return &Backend{Server: b, instance: instance, mailbox: b.letter(instance, "")}
}

// Limits implements [cas.Backend].
func (b *Server) Limits() cas.Limits { return cas.UsualLimits }

// Start implements [cas.Backend].
func (b *Backend) Start(_ context.Context, deliver func(cas.Letter), lost func()) error {
	seen := b.newest.Load()
	return b.work.Start("store/etcd", func(ctx context.Context) { b.listen(ctx, seen+1, deliver, lost) })
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	if c := b.conn.Load(); b.work.Stop() && c != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, _ = c.txn(ctx, removeAll(b.mailbox)) // otherwise another instance does it
		cancel()
	}
}

// Hears implements [cas.Backend]. A connection that is cut without a word ends with the pings, and sooner if there is something to send. A server
// without a leader ends the watch.
func (b *Backend) Hears() bool { return b.hears.Load() }

// Ready implements [cas.Backend].
func (b *Backend) Ready() error {
	if err := b.work.Ready(); err != nil {
		return err
	}
	return b.Server.Ready()
}
