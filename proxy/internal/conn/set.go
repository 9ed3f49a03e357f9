package conn

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

const (
	// MaxRefused limits connections that are only answered with a refusal.
	MaxRefused = 64
	// MaxAdmin limits connections to the admin address. Above it, a new one replaces an idle one.
	MaxAdmin = 64
	// MaxUnproven limits connections over TCP that have not shown a token yet. Above it, a new one replaces the oldest.
	MaxUnproven = 64
	// MaxServedOthers is the greatest number of connections that do not count as those of apps. Evicted ones count until they are closed.
	MaxServedOthers = 2*MaxAdmin + MaxRefused
	// MaxServedStrangers is the same of connections without a token, where one is needed.
	MaxServedStrangers = 2 * MaxUnproven
	// acceptPause is the pause after a temporary error, such as a lack of descriptors.
	acceptPause = 50 * time.Millisecond
)

// Config configures a [Set].
type Config struct {
	Log *slog.Logger
	// AllowedUIDs, if not empty, limits the users who are served on the Unix socket.
	AllowedUIDs []uint32
	// TLS, if not nil, is for the connections over TCP.
	TLS *tls.Config
	// NeedsToken: a connection over TCP is one of an app only after Prove.
	NeedsToken bool
	// Silence is for connections over TCP.
	Silence Silence
	// MaxConns limits the connections of apps. Room, if not nil, limits them in several sets together.
	MaxConns int
	Room     *Room
	// MaxBody limits the bytes of a body, MaxBodies those of all long bodies that are being read.
	MaxBody, MaxBodies int
	Timeouts           Timeouts
}

// Room is a limit that several sets share.
type Room struct {
	limit int64
	used  atomic.Int64
}

// NewRoom makes room for a number of connections.
func NewRoom(limit int) *Room { return &Room{limit: int64(limit)} }

// Enter takes a place. A nil room has no limit.
func (r *Room) Enter() bool {
	if r == nil {
		return true
	}
	if r.used.Add(1) <= r.limit {
		return true
	}
	r.used.Add(-1)
	return false
}

// Used is the number of places that are taken.
func (r *Room) Used() int { return int(r.used.Load()) }

// Leave gives a place back.
func (r *Room) Leave() {
	if r != nil {
		r.used.Add(-1)
	}
}

// MaxServed is the greatest number of connections that are served at a time. Those without a place are as many as those with one.
func (c Config) MaxServed() int { return 2*c.MaxConns + MaxServedOthers + MaxServedStrangers }

// Timeouts are the time limits of a connection.
type Timeouts struct {
	// First limits the silence of a new connection. Request limits a request from its first byte.
	First, Request time.Duration
	// Handshake limits the handshake of TLS.
	Handshake time.Duration
	// Guard is the time after which a call gets its guard, at most twice as much. A shorter call is answered even after a
	// half-close.
	Guard time.Duration
	// Heartbeat is the time between two comment lines of an event stream.
	Heartbeat time.Duration
	// StreamWrite limits how long an event stream or an answer waits for its reader.
	StreamWrite time.Duration
	// Linger limits how long a closing connection waits for its peer to stop sending.
	Linger time.Duration
}

// Set contains the open connections.
type Set struct {
	cfg   Config
	own   func(*Conn) Owner
	serve func(net.Conn)
	// guards starts the guards of long calls.
	guards *guards

	// stopping makes each call the last of its connection.
	stopping atomic.Bool
	// answers is for long answers that wait for their readers, bodies for long bodies that are not complete.
	answers, bodies allowance
	// accepting counts accept loops. serving counts goroutines that serve connections.
	accepting, serving sync.WaitGroup

	mu      sync.Mutex
	conns   map[*Conn]struct{}
	counts  [kinds]int
	refused int
	// unproven counts those that have not shown a token yet, and placeless those of other servers whose calls need no place.
	unproven, placeless int
}

// NewSet makes a set. own makes a connection's owner. serve serves it until it closes, or becomes a stream.
func NewSet(cfg Config, own func(*Conn) Owner, serve func(net.Conn)) *Set {
	s := &Set{cfg: cfg, own: own, serve: serve, conns: make(map[*Conn]struct{})}
	s.guards = newGuards(cfg.Timeouts.Guard, s.Conns)
	s.answers.limit, s.bodies.limit = MaxAnswers, int64(cfg.MaxBodies)
	return s
}

// Accept serves the connections of a listener until it is closed.
func (s *Set) Accept(ln net.Listener, k Kind) {
	s.accepting.Go(func() {
		for {
			nc, err := ln.Accept()
			if err == nil {
				s.Add(nc, k)
				continue
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.cfg.Log.Warn("cannot accept a connection", "error", err)
			time.Sleep(acceptPause)
		}
	})
}

// Add serves a connection, or closes it.
func (s *Set) Add(nc net.Conn, k Kind) {
	c := newConn(s, nc, k)
	if !s.admit(c) {
		_ = nc.Close()
		return
	}
	s.serving.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				s.cfg.Log.Error("panic while serving a connection", "panic", v, "stack", string(debug.Stack()))
				_ = c.owner.Close()
			}
		}()
		if err := c.handshake(); err != nil {
			if !errors.Is(err, io.EOF) { // nobody who only looks whether the port is open is worth a line
				s.cfg.Log.Warn("connection without a TLS handshake", "from", nc.RemoteAddr().String(), "error", err)
			}
			_ = c.owner.Close()
			return
		}
		s.serve(c.owner)
	})
}

// admit counts a connection. Up to a limit, a refused one is served so that it gets the reason.
func (s *Set) admit(c *Conn) bool {
	admitted, refusal := s.countIn(c)
	if refusal != nil {
		s.cfg.Log.Warn("connection refused", "reason", refusal.Detail, "uid", c.Peer.UID, "pid", c.Peer.PID, "answered", admitted)
	}
	return admitted
}

// countIn decides about a connection. It does not log, because other goroutines wait for s.mu.
func (s *Set) countIn(c *Conn) (admitted bool, refusal *wire.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.Kind == Admin:
		if s.counts[Admin] >= MaxAdmin && !s.makeRoom(s.counts[Admin] < 2*MaxAdmin, func(c *Conn) bool { return c.Kind == Admin && !c.busy.Load() }) {
			return false, wire.Problemf(wire.CodeLimit, "too many connections to the admin address: %d are open", s.counts[Admin])
		}
	case c.unproven:
		if s.unproven >= MaxUnproven && !s.makeRoom(s.unproven < 2*MaxUnproven, func(c *Conn) bool { return c.unproven }) {
			return false, wire.Problemf(wire.CodeLimit, "too many connections without a token: %d are open", s.unproven)
		}
		s.unproven++
		c.wanted = c.Born.Add(s.cfg.Timeouts.Request)
		s.conns[c] = struct{}{}
		return true, nil
	case c.placeless && s.placeless >= s.cfg.MaxConns:
		c.placeless, c.Refusal = false, wire.Problemf(wire.CodeLimit, "too many calls that another server passes on: %d", s.placeless)
	case c.placeless:
		s.placeless++
		s.conns[c] = struct{}{}
		return true, nil
	case c.Kind == Unix && !s.allowed(c.Peer):
		c.Refusal = wire.Problemf(wire.CodeForbidden, "this socket does not serve uid %d (LOCKSIDECAR_ALLOWED_UIDS)", c.Peer.UID)
	case s.apps() >= s.cfg.MaxConns || !s.cfg.Room.Enter():
		c.Refusal = s.tooMany()
	}
	if c.Refusal != nil {
		if s.refused >= MaxRefused {
			return false, c.Refusal
		}
		s.refused++
		c.wanted = c.Born.Add(s.cfg.Timeouts.Request) // few refused connections may be open
	} else {
		s.counts[c.Kind]++
	}
	s.conns[c] = struct{}{}
	return true, c.Refusal
}

// makeRoom closes the oldest connection of a kind, because a new one must not fail because of others: a health probe, or an app's among those
// of strangers. It fails while too many that it closed are still counted. The caller holds s.mu.
func (s *Set) makeRoom(possible bool, may func(*Conn) bool) bool {
	if !possible {
		return false
	}
	var oldest *Conn
	for c := range s.conns {
		if !c.evicted && may(c) && (oldest == nil || c.Born.Before(oldest.Born)) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	oldest.evicted = true
	oldest.cut()
	return true
}

// Prove notes that the connection has shown a token: from now on it is one of an app. It is called for each call over TCP.
func (c *Conn) Prove() *wire.Problem {
	if !c.unproven {
		return nil
	}
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.takePlace(TCP); p != nil {
		return p
	}
	c.unproven = false
	s.unproven--
	return nil
}

// TakePlace makes a connection of another server count as one of an app, because its call may wait. Its other calls need no place: they are soon over, and a release
// must not fail because calls wait.
func (c *Conn) TakePlace() *wire.Problem {
	if !c.placeless {
		return nil
	}
	s := c.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.takePlace(Passed); p != nil {
		return p
	}
	c.placeless = false
	s.placeless--
	return nil
}

// takePlace counts a connection among those of apps. The caller holds s.mu.
func (s *Set) takePlace(k Kind) *wire.Problem {
	if s.apps() >= s.cfg.MaxConns || !s.cfg.Room.Enter() {
		return s.tooMany()
	}
	s.counts[k]++
	return nil
}

// apps is the number of connections of apps. The caller holds s.mu.
func (s *Set) apps() int { return s.counts[Unix] + s.counts[TCP] + s.counts[Passed] }

// tooMany is the refusal of a connection. The caller holds s.mu.
func (s *Set) tooMany() *wire.Problem {
	if open := s.apps(); open < s.cfg.MaxConns {
		return wire.Problemf(wire.CodeLimit, "too many connections: %d are open here, and all pods of the node together may have no more", open)
	}
	return wire.Problemf(wire.CodeLimit, "too many connections: %d are open", s.cfg.MaxConns)
}

// allowed checks AllowedUIDs. An unknown peer is not allowed.
func (s *Set) allowed(p Peer) bool {
	return len(s.cfg.AllowedUIDs) == 0 || p.Known && slices.Contains(s.cfg.AllowedUIDs, p.UID)
}

func (s *Set) forget(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	switch {
	case c.Refusal != nil:
		s.refused--
	case c.unproven:
		s.unproven--
	case c.placeless:
		s.placeless--
	default:
		s.counts[c.Kind]--
		if c.Kind != Admin {
			s.cfg.Room.Leave()
		}
	}
}

// Conns returns the open connections.
func (s *Set) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

// Apps is the number of open connections of apps.
func (s *Set) Apps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apps()
}

// LongAnswers is the bytes of long answers that wait for their readers.
func (s *Set) LongAnswers() int64 { return s.answers.used.Load() }

// LongBodies is the bytes that long bodies may have which are not complete.
func (s *Set) LongBodies() int64 { return s.bodies.used.Load() }

// BeginStop makes each call the last of its connection. The caller then closes the listeners and calls [Set.Stop].
func (s *Set) BeginStop() { s.stopping.Store(true) }

// Stopping reports whether a stop has begun.
func (s *Set) Stopping() bool { return s.stopping.Load() }

// Stop waits up to patience for the answers of running calls, ends event streams, and closes the rest.
func (s *Set) Stop(patience time.Duration) {
	s.accepting.Wait()
	for _, c := range s.Conns() {
		c.stop()
	}
	late := time.AfterFunc(patience, func() {
		for _, c := range s.Conns() {
			c.cut()
		}
	})
	defer late.Stop()
	s.serving.Wait()
}
