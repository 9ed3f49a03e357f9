package conn

import (
	"errors"
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
	// MaxRefused limits connections that are only refused.
	MaxRefused = 64
	// MaxAdmin limits those on the admin address: one more takes the place of an idle one.
	MaxAdmin = 64
	// acceptPause is the pause after an error that may pass, such as a lack of descriptors.
	acceptPause = 50 * time.Millisecond
)

// Config configures a [Set].
type Config struct {
	Log *slog.Logger
	// AllowedUIDs, if not empty, limits the users who are served on the Unix socket.
	AllowedUIDs []uint32
	// MaxConns limits the connections of apps.
	MaxConns int
	Timeouts Timeouts
}

// MaxServed is the most connections that are served at a time.
func (c Config) MaxServed() int { return c.MaxConns + 2*MaxAdmin + MaxRefused }

// Timeouts are the times of a connection.
type Timeouts struct {
	// First is how long a fresh connection may stay silent, Request a request last from its first byte.
	First, Request time.Duration
	// Poll is the time between two polls of a call. A shorter call is answered even after a half-close.
	Poll time.Duration
	// Heartbeat is the time between two comment lines of an event stream.
	Heartbeat time.Duration
	// StreamWrite is how long a reader may keep an event stream or an answer waiting.
	StreamWrite time.Duration
	// Linger is how long a connection that closes waits for its peer to stop sending.
	Linger time.Duration
}

// Set has the open connections.
type Set struct {
	cfg         Config
	own         func(*Conn) Owner
	serve       func(net.Conn)
	disconnects *disconnects

	// stopping makes each call the last of its connection.
	stopping atomic.Bool
	// longAnswers is how many places for long answers are taken.
	longAnswers atomic.Int32
	// accepting counts accept loops, serving what serves connections.
	accepting, serving sync.WaitGroup

	mu      sync.Mutex
	conns   map[*Conn]struct{}
	counts  [kinds]int
	refused int
}

// NewSet makes a set. own makes a connection's owner. serve serves until a close, or a stream follows.
func NewSet(cfg Config, own func(*Conn) Owner, serve func(net.Conn)) *Set {
	s := &Set{cfg: cfg, own: own, serve: serve, conns: make(map[*Conn]struct{})}
	s.disconnects = newDisconnects(cfg.Timeouts.Poll, s.Conns)
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
		s.serve(c.owner)
	})
}

// admit counts a connection in. A refused one is admitted to hear why, up to a limit.
func (s *Set) admit(c *Conn) bool {
	admitted, refusal := s.countIn(c)
	if refusal != nil {
		s.cfg.Log.Warn("connection refused", "reason", refusal.Detail, "uid", c.Peer.UID, "pid", c.Peer.PID, "answered", admitted)
	}
	return admitted
}

// countIn decides about a connection. It does not log, because others wait for s.mu.
func (s *Set) countIn(c *Conn) (admitted bool, refusal *wire.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.Kind == Admin:
		if s.counts[Admin] >= MaxAdmin && !s.makeRoom() {
			return false, wire.Problemf(wire.CodeLimit, "too many connections to the admin address: %d are open", s.counts[Admin])
		}
	case c.Kind == Unix && !s.allowed(c.Peer):
		c.Refusal = wire.Problemf(wire.CodeForbidden, "this socket does not serve uid %d (LOCKSIDECAR_ALLOWED_UIDS)", c.Peer.UID)
	case s.counts[Unix]+s.counts[TCP] >= s.cfg.MaxConns:
		c.Refusal = wire.Problemf(wire.CodeLimit, "too many connections: %d are open", s.cfg.MaxConns)
	}
	if c.Refusal != nil {
		if s.refused >= MaxRefused {
			return false, c.Refusal
		}
		s.refused++
		c.wanted = c.Born.Add(s.cfg.Timeouts.Request) // refusals have few places
	} else {
		s.counts[c.Kind]++
	}
	s.conns[c] = struct{}{}
	return true, c.Refusal
}

// makeRoom closes the oldest idle admin connection: a probe must not fail because of others. It fails
// while those that it closed are still there. s.mu is held.
func (s *Set) makeRoom() bool {
	if s.counts[Admin] >= 2*MaxAdmin {
		return false
	}
	var oldest *Conn
	for c := range s.conns {
		if c.Kind == Admin && !c.evicted && !c.busy.Load() && (oldest == nil || c.Born.Before(oldest.Born)) {
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

// allowed decides by AllowedUIDs. An unknown peer is not allowed.
func (s *Set) allowed(p Peer) bool {
	return len(s.cfg.AllowedUIDs) == 0 || p.Known && slices.Contains(s.cfg.AllowedUIDs, p.UID)
}

func (s *Set) forget(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if c.Refusal != nil {
		s.refused--
	} else {
		s.counts[c.Kind]--
	}
}

// Conns returns the open connections.
func (s *Set) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

// Apps is how many connections of apps are open.
func (s *Set) Apps() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[Unix] + s.counts[TCP]
}

// LongAnswers is how many long answers wait for their readers.
func (s *Set) LongAnswers() int { return int(s.longAnswers.Load()) }

// BeginStop makes each call the last of its connection. Then close the listeners and call [Set.Stop].
func (s *Set) BeginStop() { s.stopping.Store(true) }

// Stopping reports whether a stop has begun.
func (s *Set) Stopping() bool { return s.stopping.Load() }

// Stop gives pending calls patience for their answer, ends event streams, and closes the rest.
func (s *Set) Stop(patience time.Duration) {
	s.accepting.Wait()
	for _, c := range s.Conns() {
		c.leave()
	}
	late := time.AfterFunc(patience, func() {
		for _, c := range s.Conns() {
			c.cut()
		}
	})
	defer late.Stop()
	s.serving.Wait()
}
