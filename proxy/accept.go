package proxy

import (
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// kind is where a connection came in.
type kind uint8

const (
	kindUnix kind = iota
	kindTCP
	kindAdmin
	kinds
)

// acceptPause is the pause after an error that may pass, such as a lack of descriptors.
const acceptPause = 50 * time.Millisecond

func (s *Server) accept(ln net.Listener, k kind) {
	s.accepting.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				s.log.Warn("cannot accept a connection", "error", err)
				time.Sleep(acceptPause)
				continue
			}
			c := newConn(s, nc, k)
			if !s.admit(c) {
				_ = nc.Close()
				continue
			}
			s.serving.Go(func() { s.serve(c) })
		}
	})
}

// admit counts a connection in. A refused one is admitted to hear why, up to a limit.
func (s *Server) admit(c *connection) bool {
	admitted, refusal := s.countIn(c)
	if refusal != nil {
		s.log.Warn("connection refused", "reason", refusal.Detail, "uid", c.peer.UID, "pid", c.peer.PID, "answered", admitted)
	}
	return admitted
}

// countIn decides about a connection. It does not log, because others wait for s.mu.
func (s *Server) countIn(c *connection) (admitted bool, refusal *wire.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.kind == kindAdmin:
		if s.counts[kindAdmin] >= maxAdmin && !s.makeRoom() {
			return false, wire.LimitReached(fmt.Sprintf("too many connections to the admin address: %d are open", s.counts[kindAdmin]))
		}
	case c.kind == kindUnix && !s.allowed(c.peer):
		c.refusal = wire.Forbidden(fmt.Sprintf("this socket does not serve uid %d (LOCKSIDECAR_ALLOWED_UIDS)", c.peer.UID))
	case s.counts[kindUnix]+s.counts[kindTCP] >= s.cfg.MaxConns:
		c.refusal = wire.LimitReached(fmt.Sprintf("too many connections: %d are open", s.cfg.MaxConns))
	}
	if c.refusal != nil {
		if s.refused >= maxRefused {
			return false, c.refusal
		}
		s.refused++
		c.wanted = c.born.Add(s.cfg.Timeouts.Request) // refusals have few places
	} else {
		s.counts[c.kind]++
	}
	s.conns[c] = struct{}{}
	return true, c.refusal
}

// makeRoom closes the oldest idle connection on the admin address: a probe must not fail
// because of others. It fails if those that it closed are still there. s.mu is held.
func (s *Server) makeRoom() bool {
	if s.counts[kindAdmin] >= 2*maxAdmin {
		return false
	}
	var oldest *connection
	for c := range s.conns {
		if c.kind == kindAdmin && !c.evicted && !c.busy.Load() && (oldest == nil || c.born.Before(oldest.born)) {
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

// allowed decides by LOCKSIDECAR_ALLOWED_UIDS. An unknown peer is not allowed.
func (s *Server) allowed(p conn.Peer) bool {
	return len(s.cfg.AllowedUIDs) == 0 || p.Known && slices.Contains(s.cfg.AllowedUIDs, p.UID)
}

// forget counts a connection out.
func (s *Server) forget(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if c.refusal != nil {
		s.refused--
	} else {
		s.counts[c.kind]--
	}
}

// serve serves a connection until it closes, or an event stream takes it over.
func (s *Server) serve(c *connection) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("panic while serving a connection", "panic", v, "stack", string(debug.Stack()))
			_ = c.Close()
		}
	}()
	if err := s.http.ServeConn(c); err != nil {
		s.log.Debug("connection ended", "error", unquoted(err))
	}
}
