package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"sync"
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

// Server is what the instances of a process share: connections, and what is known of the server.
type Server struct {
	config Config
	target target
	cas.Readiness
	// span begins a request's span. Spans contain neither keys nor data.
	span func(ctx context.Context, name string) (context.Context, func(error))

	main   *sql.DB                // of all instances
	server atomic.Pointer[string] // names the server in SQL; set by the first check
	latest latest
	quiet  cas.QuietTime
	// longest is the longest TTL of the leases that were opened here, in microseconds.
	longest atomic.Int64

	// used: operations were called since the last sweep.
	used atomic.Bool

	wakes wakes

	mu    sync.Mutex
	views map[*Backend]struct{} // that run
}

// Backend is one instance's part of a [Server]. It has a connection of its own for renewals, and gets its letters by two
// others, while they are expected.
type Backend struct {
	*Server
	instance string
	work     cas.Work
	own      ownPools

	need     atomic.Int32 // of letters: see Expect
	expected chan struct{}
	naps     naps
	shut     string // the last lock that the connection for the mailbox got for a sleeper; of the goroutine that listens
	way      currentWay
	steps    steps
	// proven: this instance has woken itself: see wakes.
	proven atomic.Bool
}

var (
	_ cas.Backend     = (*Backend)(nil)
	_ cas.Server      = (*Server)(nil)
	_ cas.Expecter    = (*Backend)(nil)
	_ cas.Confirmer   = (*Backend)(nil)
	_ store.Described = (*Backend)(nil)
	_ store.Quieter   = (*Backend)(nil)
	_ store.Quieter   = (*Server)(nil)
)

const (
	defaultMaxConns = 4
)

// NewServer returns a server that Start connects. It fails if the configuration can never work. The error contains no password.
func NewServer(config Config) (*Server, error) {
	t, err := parseURL(config.URL)
	if err != nil {
		return nil, fmt.Errorf("store/mysql: %w", err)
	}
	config.Timeout = cmp.Or(config.Timeout, cas.DefaultTimeout)
	if config.MaxConns == 0 {
		config.MaxConns = defaultMaxConns
	}
	b := &Server{
		config: config, target: t, views: map[*Backend]struct{}{},
		Readiness: cas.Readiness{Name: "store/mysql", Log: config.Logger, Limit: config.Timeout},
	}
	b.Init(func(ctx context.Context) error {
		err := b.check(ctx)
		if err != nil {
			b.dropConnections()
		}
		return err
	}, errNotReached)
	b.span = tracing.Requests(config.Tracers, "mysql", harmless)
	b.main = b.pool(b.Connections(), nil)
	b.wakes.init()
	return b, nil
}

// Start implements [cas.Server].
func (b *Server) Start(ctx context.Context) error {
	return b.Readiness.Start(ctx, b.wakeOthers, b.sweep)
}

// Stop implements [cas.Server].
func (b *Server) Stop() {
	b.Readiness.Stop()
	_ = b.main.Close()
}

// View implements [cas.Server].
func (b *Server) View(instance string) cas.Backend { return b.view(instance) }

func (b *Server) view(instance string) *Backend {
	return &Backend{
		Server: b, instance: instance, own: b.newOwnPools(),
		expected: make(chan struct{}, 1), naps: usualNaps, shut: "locksidecar:",
	}
}

// running are the instances that run.
func (b *Server) running() []*Backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.views))
}

// Start implements [cas.Backend].
func (b *Backend) Start(_ context.Context, deliver func(cas.Letter), lost func()) error {
	if len(b.instance) > maxMailbox {
		return fmt.Errorf("store/mysql: the instance's name has %d bytes; at most %d are possible", len(b.instance), maxMailbox)
	}
	if err := b.work.Start("store/mysql", func(ctx context.Context) { b.listen(ctx, deliver, lost) }); err != nil {
		return err
	}
	b.mu.Lock()
	b.views[b] = struct{}{}
	b.mu.Unlock()
	return nil
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	b.work.Stop()
	b.mu.Lock()
	delete(b.views, b)
	b.mu.Unlock()
	b.isProven(false)
	closeAll(b.own.all())
}

// Connections is how many requests of the instances are carried out at a time. A packet may wait for a row that somebody has locked.
func (b *Server) Connections() int { return max(1, b.config.MaxConns-2) }

// Patience is for how long a request waits for a connection.
func (b *Server) Patience() time.Duration { return b.config.Timeout }

// Quiet implements [store.Quieter].
func (b *Server) Quiet() time.Duration { return b.quiet.Left() }

// Limits implements [cas.Backend].
func (b *Server) Limits() cas.Limits { return cas.UsualLimits }

// Ready implements [cas.Backend].
func (b *Backend) Ready() error {
	if err := b.work.Ready(); err != nil {
		return err
	}
	return b.Server.Ready()
}
