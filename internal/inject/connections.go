package inject

import (
	linked "container/list" // "list" is one of JSON in this package
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"
)

// connections is a listener with at most limit open connections. One more closes that whose last
// review, or else beginning, is longest ago. So idle connections end, and API servers and probes get
// in.
type connections struct {
	net.Listener

	limit int
	log   *slog.Logger

	mu     sync.Mutex
	open   *linked.List // of *connection, the one that is closed next in front
	logged time.Time
}

// connection is an open connection; list knows it as element.
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

// add returns the connection that has to go, or nil.
func (l *connections) add(conn *connection) *connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	conn.element = l.open.PushBack(conn)
	if l.open.Len() <= l.limit {
		return nil
	}
	if time.Since(l.logged) >= time.Minute {
		l.logged = time.Now()
		l.log.Warn("too many connections: the one that asked for nothing for the longest time is closed", "limit", l.limit)
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

// used notes a whole review of the request's connection: it moves to the end of the line.
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
