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
	// Locks decides all calls about locks; required. See [FromManager].
	Locks Locks
	// Logger is required.
	Logger *slog.Logger
	// Version is what GET /v1 shows.
	Version string
	// Lacking are the features that the store lacks. GET /v1 omits them.
	Lacking []string
	// Details, if not nil, returns what GET /readyz shows about the store's server. It may return nil.
	Details func() map[string]string

	// Socket is the path of the Unix socket, at most 107 bytes; required.
	Socket string
	// Claimed, if not nil, is called when this process has locked the path, before it serves clients. Its
	// error makes Start fail.
	Claimed func() error
	// SocketMode is the socket's file mode.
	SocketMode fs.FileMode
	// AllowedUIDs, if not empty, limits the users on the Unix socket. Only on Linux.
	AllowedUIDs []uint32
	// TCPAddr is an additional loopback address to serve; empty: none.
	TCPAddr string
	// AdminAddr is an address that serves health and metrics; empty: none.
	AdminAddr string

	// TTL is package lease's default, for a bind:ttl lock without a TTL.
	TTL time.Duration
	// Namespace is the namespace of the locks, for GET /v1/stats.
	Namespace string
	// AllowForce lets clients break locks of any holder.
	AllowForce bool

	// MaxConns limits open connections.
	MaxConns int
	// MaxBody limits the bytes of a request's body.
	MaxBody int

	// Tracer makes spans, Metrics counts; both may be nil.
	Tracer  *tracing.Tracer
	Metrics *metrics.Calls
	// MetricsHandler answers GET /metrics; nil: the path does not exist.
	MetricsHandler fasthttp.RequestHandler

	// Timeouts are for tests; zero means the defaults.
	Timeouts Timeouts
}

// Timeouts are time limits of this package.
type Timeouts struct {
	conn.Timeouts
	// Subscribe limits how long the head of a key's stream waits, so that an early failure can be a status.
	Subscribe time.Duration
	// Stats is for how long the result of a count for GET /v1/stats is repeated.
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

// check refuses settings that package config cannot check.
func (c Config) check() error {
	if len(c.AllowedUIDs) > 0 && !conn.KnowsPeers {
		return errors.New("LOCKSIDECAR_ALLOWED_UIDS: this system does not report the user of a connection; leave it out")
	}
	return nil
}
