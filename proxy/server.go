package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/store"
)

// Config configures a [Server].
type Config struct {
	// Locks decides all calls about locks; required if there is a Socket.
	Locks *lease.Manager
	// Ready says what GET /readyz answers; nil: what Locks says.
	Ready func() error
	// Logger is required.
	Logger *slog.Logger
	// Version is what GET /v1 shows.
	Version string
	// Namespaces, if not nil, reports whether the locks of other namespaces can be read now.
	Namespaces func() bool
	// Details, if not nil, returns what GET /readyz shows about the store's server. It may return nil.
	Details func() map[string]string

	// Socket is the path of the Unix socket, at most 107 bytes. Without one, there is only the AdminAddr.
	Socket string
	// TakeOver, if not nil, lets several servers serve the path one after the other, with this one's connections left to it when another
	// takes the path over. It calls its argument, which takes the path, if this server may do so, and no other one meanwhile.
	TakeOver func(take func() error) error
	// Beside is a socket at which other servers of this user pass calls on; empty: none. Its folder is closed to others.
	Beside string
	// Others, if not nil, lists the Beside of other servers of Socket. A call that names a session which this server does not know is passed on to them.
	// With an error there may be more.
	Others func() ([]string, error)
	// Claimed, if not nil, is called when this process has locked the path, before it serves clients.
	Claimed func()
	// SocketMode is the socket's file mode.
	SocketMode fs.FileMode
	// AllowedUIDs, if not empty, limits the users on the Unix socket. Only on Linux.
	AllowedUIDs []uint32
	// TCPAddr is an additional address to serve; empty: none. It is loopback, or Authorized is set.
	TCPAddr string
	// TLS, if not nil, is for the connections to TCPAddr.
	TLS *tls.Config
	// Authorized, if not nil, reports whether the value of a header Authorization allows a call at TCPAddr.
	Authorized func(header []byte) bool
	// AdminAddr is an address that serves health and metrics; empty: none.
	AdminAddr string

	// TTL is package lease's default, for a bind:ttl lock without a TTL.
	TTL time.Duration
	// Namespace is the namespace of the locks, for GET /v1/stats.
	Namespace string
	// AllowForce lets clients break locks of any holder.
	AllowForce bool
	// OneNamespace: clients see nothing of other namespaces, nor of the store's server. For clients that must not trust each other.
	OneNamespace bool

	// MaxConns limits open connections. Room, if not nil, limits those of several servers together.
	MaxConns int
	Room     *Room
	// MaxBody limits the bytes of a request's body, MaxBodies those of all long bodies that are not complete.
	MaxBody, MaxBodies int
	// MemoryLow, if not nil, reports that memory is nearly used up: then nothing is granted, and no session or event stream
	// begins.
	MemoryLow func() bool

	// Tracer makes spans, Metrics counts; both may be nil.
	Tracer  *tracing.Tracer
	Metrics *metrics.Calls
	// MetricsHandler answers GET /metrics; nil: the path does not exist.
	MetricsHandler fasthttp.RequestHandler

	// Timeouts are for tests; zero means the defaults.
	Timeouts Timeouts
}

// Room limits the connections of several servers together.
type Room = conn.Room

// NewRoom makes room for a number of connections. Its owner counts them for the metrics.
func NewRoom(limit int) *Room { return conn.NewRoom(limit) }

// OtherConns is how many connections are served at most besides those of apps: to the admin address, and refused ones.
const OtherConns = conn.MaxServedOthers

// StrangersConns is how many connections without a token are served at most besides, if calls over TCP need one.
const StrangersConns = conn.MaxServedStrangers

// Timeouts are time limits of this package.
type Timeouts struct {
	conn.Timeouts
	// Subscribe limits how long the head of a key's stream waits, so that an early failure can be a status.
	Subscribe time.Duration
	// Stats is for how long the result of a count for GET /v1/stats is repeated.
	Stats time.Duration
	// Stop is how long Stop waits for pending calls.
	Stop time.Duration
	// PassOn is how long another server may take to say whether it knows a session.
	PassOn time.Duration
}

var defaultTimeouts = Timeouts{
	Timeouts: conn.Timeouts{
		First: time.Minute, Request: 10 * time.Second, Handshake: 10 * time.Second, Guard: 25 * time.Millisecond,
		Heartbeat: 15 * time.Second, StreamWrite: 5 * time.Second, Linger: time.Second,
	},
	Subscribe: 100 * time.Millisecond, Stats: time.Second, Stop: 3 * time.Second, PassOn: 3 * time.Second,
}

// check refuses settings that package config cannot check.
func (c Config) check() error {
	if len(c.AllowedUIDs) > 0 && !conn.KnowsPeers {
		return errors.New("LOCKSIDECAR_ALLOWED_UIDS: this system does not report the user of a connection; leave it out")
	}
	return nil
}

// manager is the part of [lease.Manager] that a server calls. A server has no other one but in tests: they put a few
// lines in front of a real manager, with which a call waits at a given point, or fails or panics in a way that no store could cause.
type manager interface {
	OpenSession(lease.SessionOptions) (*lease.Session, error)
	Session(id string) (*lease.Session, error)
	Acquire(context.Context, *lease.Session, lease.Request) (lease.Grant, error)
	AcquireAll(context.Context, *lease.Session, []string, lease.Request) ([]lease.Grant, error)
	Release(context.Context, *lease.Session, lease.ReleaseRequest) (lease.Released, error)
	Amend(context.Context, *lease.Session, lease.AmendRequest) (lease.Grant, error)
	Get(ctx context.Context, s *lease.Session, key string, noCache bool) (lease.View, error)
	List(context.Context, *lease.Session, lease.ListRequest) (lease.Page, error)
	Waiters(context.Context, lease.WaitersRequest) (lease.WaitersPage, error)
	AskToStop(ctx context.Context, key string, token int64, reason *string) error
	Break(ctx context.Context, was store.Lock, token int64) error
	Watch(ctx context.Context, s *lease.Session, key string, notify func(lease.Event)) (v lease.View, stop func(), err error)
	Stats(context.Context) (store.Stats, error)
	HandBack(*lease.Session, lease.Grant)
	Ready() error
}

// Server serves the HTTP API. Make one with [New].
type Server struct {
	cfg   Config
	locks manager
	log   *slog.Logger
	// http serves connections, and overTCP those of apps over TCP.
	http, overTCP *fasthttp.Server

	statsCache   *statsCache
	countProblem func(code string) // counts each problem

	conns  *conn.Set
	socket *conn.Socket
	// beside accepts calls that other servers pass on.
	beside     net.Listener
	tcp, admin net.Listener
	// leaving: another server has the path, so connections without locks end after their calls.
	leaving atomic.Bool

	mu      sync.Mutex
	started bool
	stopped bool
}

// New makes a server; Start makes it serve.
func New(cfg Config) *Server {
	cfg.Timeouts = cmp.Or(cfg.Timeouts, defaultTimeouts)
	s := &Server{cfg: cfg, locks: cfg.Locks, log: cfg.Logger}
	conns := conn.Config{Log: cfg.Logger, AllowedUIDs: cfg.AllowedUIDs, TLS: cfg.TLS, NeedsToken: cfg.Authorized != nil, Silence: conn.SilenceFor(cfg.TTL), MaxConns: cfg.MaxConns, Room: cfg.Room, MaxBody: cfg.MaxBody, MaxBodies: cfg.MaxBodies, Timeouts: cfg.Timeouts.Timeouts}
	s.conns = conn.NewSet(conns, s.own, s.serve)
	s.statsCache = newStatsCache(cfg.Timeouts.Stats)
	s.countProblem = cfg.Metrics.Problem // a nil recorder does not count
	if cfg.Room == nil {
		cfg.Metrics.Observe(s.conns.Apps)
	}
	s.http, s.overTCP = s.newHTTP(noteHeadRead, conns), s.newHTTP(s.noteHeadReadOverTCP, conns)
	return s
}

// newHTTP makes a server of HTTP, which calls headRead after each head.
func (s *Server) newHTTP(headRead func(*fasthttp.RequestHeader) fasthttp.RequestConfig, conns conn.Config) *fasthttp.Server {
	cfg := s.cfg
	return &fasthttp.Server{
		Handler:      s.handle,
		ErrorHandler: s.handleBadRequest,
		Logger:       quietLogger{cfg.Logger},
		// Conn must know where a head ends and a body begins, because their time and memory have different limits. fasthttp
		// calls this function then, and because of the result SetReadDeadline. Conn sets no deadline, but notes the call.
		HeaderReceived:               headRead,
		ReadBufferSize:               conn.MaxHead,
		MaxRequestBodySize:           cfg.MaxBody,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultDate:                true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
		// Package conn enforces the limit, because its refusal is a proper answer.
		Concurrency: conns.MaxServed() + 1,
	}
}

// Start listens and serves. If it fails, it closes everything.
func (s *Server) Start(ctx context.Context) error {
	if err := s.cfg.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.stopped {
		return errors.New("proxy: a server starts once")
	}
	if err := s.listen(ctx); err != nil {
		s.closeListeners()
		return err
	}
	if s.cfg.Claimed != nil {
		s.cfg.Claimed()
	}
	s.started = true
	if s.socket != nil {
		s.conns.Accept(s.socket.Listener, conn.Unix)
	}
	if s.beside != nil {
		s.conns.Accept(s.beside, conn.Passed)
	}
	if s.tcp != nil {
		s.conns.Accept(s.tcp, conn.TCP)
	}
	if s.admin != nil {
		s.conns.Accept(s.admin, conn.Admin)
	}
	s.log.Info("serving", "socket", s.cfg.Socket, "tcp", textOf(s.TCPAddr()), "admin", textOf(s.AdminAddr()))
	return nil
}

func (s *Server) listen(ctx context.Context) (err error) {
	var lc net.ListenConfig
	if s.cfg.Beside != "" {
		if s.beside, err = lc.Listen(ctx, "unix", s.cfg.Beside); err != nil {
			return err
		}
	}
	if err = s.listenOnSocket(ctx); err != nil { // last: it may take the path from another server
		return err
	}
	if s.cfg.TCPAddr != "" {
		if s.tcp, err = lc.Listen(ctx, "tcp", s.cfg.TCPAddr); err != nil {
			return fmt.Errorf("LOCKSIDECAR_TCP_ADDR: %w", err)
		}
	}
	if s.cfg.AdminAddr != "" {
		if s.admin, err = lc.Listen(ctx, "tcp", s.cfg.AdminAddr); err != nil {
			return fmt.Errorf("LOCKSIDECAR_ADMIN_ADDR: %w", err)
		}
	}
	return nil
}

func (s *Server) listenOnSocket(ctx context.Context) (err error) {
	switch {
	case s.cfg.Socket == "":
	case s.cfg.TakeOver != nil:
		s.socket, err = conn.TakeOver(ctx, s.cfg.Socket, s.cfg.SocketMode, s.cfg.TakeOver)
	default:
		s.socket, err = conn.Listen(ctx, s.cfg.Socket, s.cfg.SocketMode)
	}
	return err
}

// Serves reports whether the path has this server's socket: no other server has taken it over, and nobody has removed it.
func (s *Server) Serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.socket != nil && s.socket.IsThere()
}

// IsReplaced reports whether another server has taken the path over. If nobody serves there, it is false.
func (s *Server) IsReplaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.socket != nil && s.socket.IsReplaced()
}

// TakeAgain takes the path again, because it does not have this server's socket.
func (s *Server) TakeAgain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.stopped || s.leaving.Load() {
		return errors.New("proxy: the server does not serve")
	}
	socket, err := conn.TakeOver(ctx, s.cfg.Socket, s.cfg.SocketMode, s.cfg.TakeOver)
	if err != nil {
		return err
	}
	s.socket.Close(s.log)
	s.socket = socket
	s.conns.Accept(socket.Listener, conn.Unix)
	return nil
}

// Leave accepts no more connections of apps, because another server has taken the path over. Open connections are served. One that holds no
// locks ends after its call, and its app connects to the other server.
func (s *Server) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started && !s.stopped && !s.leaving.Swap(true) {
		s.socket.Close(s.log)
	}
}

func (s *Server) closeListeners() {
	if s.socket != nil {
		s.socket.Close(s.log)
	}
	for _, ln := range []net.Listener{s.tcp, s.admin, s.beside} {
		if ln != nil {
			_ = ln.Close()
		}
	}
}

// Connections is the number of open connections of apps.
func (s *Server) Connections() int { return s.conns.Apps() }

// TCPAddr is the address of the TCP listener, or nil.
func (s *Server) TCPAddr() net.Addr { return addrOf(s.tcp) }

// AdminAddr is the address of the admin listener, or nil.
func (s *Server) AdminAddr() net.Addr { return addrOf(s.admin) }

// textOf is an address as text, because a JSON log would show its parts.
func textOf(a net.Addr) any {
	if a == nil {
		return nil
	}
	return a.String()
}

func addrOf(ln net.Listener) net.Addr {
	if ln == nil {
		return nil
	}
	return ln.Addr()
}

// Stop accepts no more connections, waits a limited time for the answers of running calls, ends event
// streams, and closes the rest. Package lease must be drained before, so that clients can leave, and
// stopped after it, because it is notified of each session's end.
func (s *Server) Stop() {
	s.mu.Lock()
	s.conns.BeginStop()
	if s.started && !s.stopped {
		s.closeListeners()
	}
	s.stopped = true
	s.mu.Unlock()
	s.conns.Stop(s.cfg.Timeouts.Stop)
}

func (s *Server) endReason() lease.EndReason {
	if s.conns.Stopping() {
		return lease.EndShutdown
	}
	return lease.EndDropped
}

// quietLogger receives the log of fasthttp, which contains connection errors.
type quietLogger struct{ log *slog.Logger }

func (l quietLogger) Printf(format string, args ...any) {
	l.log.Debug("fasthttp", "message", fmt.Sprintf(format, args...))
}
