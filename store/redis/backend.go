package redis

import (
	"cmp"
	"context"
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

// Server is what the instances of a process share: the connections, and what is known of the servers.
type Server struct {
	config Config
	target target
	cas.Readiness
	// span begins a request's span. Spans contain neither keys nor data.
	span   func(ctx context.Context, name string) (context.Context, func(error))
	client goredis.UniversalClient
	parts  []partition
	quiet  []cas.QuietTime // of the partitions

	history  histories
	listener listener
}

// Backend is one instance's part of a [Server].
type Backend struct {
	*Server
	mailbox
}

var (
	_ cas.Backend     = (*Backend)(nil)
	_ cas.Server      = (*Server)(nil)
	_ store.Described = (*Backend)(nil)
	_ store.Quieter   = (*Backend)(nil)
	_ store.Quieter   = (*Server)(nil)
)

const (
	defaultMaxConns = 3
	// bufferSize of a connection's reader and writer, in bytes. The library's default is 32 KiB each.
	bufferSize = 8 << 10
)

// NewServer returns a server that Start connects. It fails if the configuration can never work. The error contains no password.
func NewServer(config Config) (*Server, error) {
	t, err := parse(config.URL)
	if err != nil {
		return nil, &configError{err}
	}
	config.Timeout = cmp.Or(config.Timeout, cas.DefaultTimeout)
	if config.MaxConns <= 0 {
		config.MaxConns = defaultMaxConns
	}
	b := &Server{
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
	b.listener.init()
	b.client = b.connect()
	return b, nil
}

type configError struct{ error }

func (e *configError) Error() string { return "store/redis: " + e.error.Error() }

// Start implements [cas.Server].
func (b *Server) Start(ctx context.Context) error { return b.Readiness.Start(ctx, b.listen) }

// Stop implements [cas.Server].
func (b *Server) Stop() {
	b.Readiness.Stop()
	_ = b.client.Close()
}

// View implements [cas.Server].
func (b *Server) View(instance string) cas.Backend { return b.view(instance) }

func (b *Server) view(instance string) *Backend {
	return &Backend{Server: b, mailbox: mailbox{instance: instance, channel: b.channel(instance)}}
}

// Quiet implements [store.Quieter].
func (b *Server) Quiet() (left time.Duration) {
	for i := range b.quiet {
		left = max(left, b.quiet[i].Left())
	}
	return left
}

// Limits implements [cas.Backend].
func (b *Server) Limits() cas.Limits { return cas.UsualLimits }

// Start implements [cas.Backend].
func (b *Backend) Start(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	b.deliver, b.lost = deliver, lost
	return b.join(ctx, &b.mailbox)
}

// Stop implements [cas.Backend].
func (b *Backend) Stop() {
	b.part(&b.mailbox)
}

// Ready implements [cas.Backend].
func (b *Backend) Ready() error {
	if err := b.Server.Ready(); err != nil {
		return err
	}
	return b.listener.ready(&b.mailbox)
}

// Hears implements [cas.Backend].
func (b *Backend) Hears() bool { return b.listener.hears(&b.mailbox) }
