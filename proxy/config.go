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
	// SocketMode is the socket's file mode.
	SocketMode fs.FileMode
	// AllowedUIDs, if not empty, limits the users on the Unix socket. Only on Linux.
	AllowedUIDs []uint32
	// TCPAddr is a loopback address to serve as well; empty: none.
	TCPAddr string
	// AdminAddr is an address to serve health and metrics on; empty: none.
	AdminAddr string

	// TTL is package lease's default, for a bind:ttl lock without one.
	TTL time.Duration
	// Namespace is the one of the locks, for GET /v1/stats.
	Namespace string
	// AllowForce lets clients break locks, whoever holds them.
	AllowForce bool

	// MaxConns limits open connections.
	MaxConns int
	// MaxBody is the most bytes in a request's body.
	MaxBody int

	// Tracer makes spans, Metrics counts; both may be nil.
	Tracer  *tracing.Tracer
	Metrics *metrics.Calls
	// MetricsHandler answers GET /metrics; nil: the path does not exist.
	MetricsHandler fasthttp.RequestHandler

	// Timeouts are for tests; zero means the defaults.
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

var defaultTimeouts = Timeouts{
	Timeouts: conn.Timeouts{
		First: time.Minute, Request: 10 * time.Second, Poll: 25 * time.Millisecond,
		Heartbeat: 15 * time.Second, StreamWrite: 5 * time.Second, Linger: time.Second,
	},
	Subscribe: 100 * time.Millisecond, Stats: time.Second, Stop: 3 * time.Second,
}

// check refuses what package config cannot know.
func (c Config) check() error {
	if len(c.AllowedUIDs) > 0 && !conn.KnowsPeers {
		return errors.New("LOCKSIDECAR_ALLOWED_UIDS: this system does not tell who connects; leave it out")
	}
	return nil
}
