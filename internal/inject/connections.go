package inject

import (
	linked "container/list" // "list" is a JSON type in this package
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"
)

// connections is a listener with at most limit open connections. Above the limit it closes the connection whose
// last review, or otherwise beginning, is the oldest. So idle connections end, and API servers and probes can
// connect.
type connections struct {
	net.Listener

	limit int
	log   *slog.Logger

	mu     sync.Mutex
	open   *linked.List // of *connection; the next to close is at the front
	logged time.Time
}

// connection is an open connection. element is its place in the list.
type connection struct {
	net.Conn

	all     *connections
	element *linked.Element
}

func limitConnections(listener net.Listener, limit int, log *slog.Logger) *connections {
	return &connections{Listener: listener, limit: limit, log: log, open: linked.New()}
}

// Accept implements [net.Listener].
func (l *connections) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: accepted, all: l}
	if oldest := l.add(conn); oldest != nil {
		_ = oldest.Close()
	}
	return conn, nil
}

// add returns the connection that must be closed, or nil.
func (l *connections) add(conn *connection) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn.element = l.open.PushBack(conn)
	if l.open.Len() <= l.limit {
		return nil
	}
	if time.Since(l.logged) >= time.Minute {
		l.logged = time.Now()
		l.log.Warn("too many connections: the longest idle one is closed", "limit", l.limit)
	}
	oldest, _ := l.open.Remove(l.open.Front()).(*connection)
	return oldest
}

type connectionKey struct{}

// withConnection is [http.Server.ConnContext] for TLS on connections.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// used records a complete review on the request's connection, which moves to the end of the list.
func used(request context.Context) {
	if c, ok := request.Value(connectionKey{}).(*connection); ok {
		c.all.mu.Lock()
		defer c.all.mu.Unlock()
		c.all.open.MoveToBack(c.element)
	}
}

// Close implements [net.Conn]. It may be called twice.
func (c *connection) Close() error {
	c.all.mu.Lock()
	c.all.open.Remove(c.element)
	c.all.mu.Unlock()
	return c.Conn.Close()
}
