package proxy

import (
	"errors"
	"io/fs"
	"log/slog"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
)

// Config configures a [Server].
type Config struct {
	// Locks decides about locks; required. See [FromManager].
	Locks Locks
	// Logger is required.
	Logger *slog.Logger
	// Version is what GET /v1 shows.
	Version string
	// Lacking are the features that the store does not have: GET /v1 leaves them out.
	Lacking []string

	// Socket is the path of the Unix socket, at most 107 bytes; required.
	Socket string
	// Claimed, if not nil, is called when the lock file gives this process the path and nobody is
	// served yet. Its error makes Start fail.
	Claimed func() error
	// SocketMode is the socket's file mode; 0 means 0660.
	SocketMode fs.FileMode
	// AllowedUIDs, if not empty, limits the users on the Unix socket. Only on Linux.
	AllowedUIDs []uint32
	// TCPAddr is a loopback address to serve as well; empty: none.
	TCPAddr string
	// AdminAddr is an address to serve health and metrics on; empty: none.
	AdminAddr string

	// TTL is package lease's default, for a bind:ttl lock without one; 0 means 15 seconds.
	TTL time.Duration
	// Namespace is the one of the locks, for GET /v1/stats.
	Namespace string
	// AllowForce lets clients break locks, whoever holds them.
	AllowForce bool

	// MaxSessions is the limit of package lease. The default of MaxConns depends on it.
	MaxSessions int
	// MaxConns limits open connections; 0 means four for each session and 64.
	MaxConns int
	// MaxBody is the most bytes in a request's body; 0 means 64 KiB.
	MaxBody int

	// Tracer makes spans, Metrics counts; both may be nil.
	Tracer  *tracing.Tracer
	Metrics *metrics.Calls
	// MetricsHandler answers GET /metrics; nil: the path does not exist.
	MetricsHandler fasthttp.RequestHandler

	// Timeouts are for tests; zero values mean the defaults.
	Timeouts Timeouts
}

// Timeouts are the times that this package waits for something.
type Timeouts struct {
	conn.Timeouts
	// Subscribe limits how long the head of a key's stream waits, so an early failure is a status.
	Subscribe time.Duration
	// Stats is how long a count for GET /v1/stats is repeated.
	Stats time.Duration
	// Stop is how long Stop waits for pending calls.
	Stop time.Duration
}

const (
	defaultFirst          = time.Minute
	defaultRequestTimeout = 10 * time.Second
	defaultPoll           = 25 * time.Millisecond
	defaultSubscribe      = 100 * time.Millisecond
	defaultHeartbeat      = 15 * time.Second
	defaultStreamWrite    = 5 * time.Second
	defaultLinger         = time.Second
	defaultStats          = time.Second
	defaultStopTimeout    = 3 * time.Second

	defaultTTL = 15 * time.Second

	defaultSocketMode fs.FileMode = 0o660
	defaultMaxBody                = 64 << 10
)

func (c Config) withDefaults() Config {
	or(&c.SocketMode, defaultSocketMode)
	or(&c.MaxBody, defaultMaxBody)
	or(&c.MaxConns, 4*c.MaxSessions+64)
	or(&c.Timeouts.First, defaultFirst)
	or(&c.Timeouts.Request, defaultRequestTimeout)
	or(&c.Timeouts.Poll, defaultPoll)
	or(&c.TTL, defaultTTL)
	or(&c.Timeouts.Subscribe, defaultSubscribe)
	or(&c.Timeouts.Heartbeat, defaultHeartbeat)
	or(&c.Timeouts.StreamWrite, defaultStreamWrite)
	or(&c.Timeouts.Linger, defaultLinger)
	or(&c.Timeouts.Stats, defaultStats)
	or(&c.Timeouts.Stop, defaultStopTimeout)
	return c
}

func or[T comparable](v *T, fallback T) {
	var zero T
	if *v == zero {
		*v = fallback
	}
}

// check refuses what package config cannot know.
func (c Config) check() error {
	if c.Locks == nil || c.Logger == nil {
		return errors.New("proxy: Locks and Logger are required")
	}
	if len(c.AllowedUIDs) > 0 && !conn.KnowsPeers {
		return errors.New("LOCKSIDECAR_ALLOWED_UIDS: this system does not tell who connects; leave it out")
	}
	return nil
}
