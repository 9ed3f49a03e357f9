package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// port is part of the name of the proxy's socket. Each proxy has its own folder.
const port = 5432

// Proxy listens on a Unix socket and connects to a server. Its methods may be called by several
// goroutines at a time, except Refuse.
type Proxy struct {
	folder string
	wg     sync.WaitGroup

	mu       sync.Mutex
	server   *pgconn.Config
	listener *net.UnixListener // nil while connections are refused
	conns    map[*conn]struct{}
	deaf     map[uint32]struct{} // process ids of the server that must not be cancelled
	hooks    []*Hook
	// arrives decides about each notification; nil: all arrive.
	arrives func(payload string) bool
	closed  bool
	open    *sync.Cond // on mu
	stalled bool
	latency time.Duration
}

// Start starts a proxy to a database, which ends with the test.
func Start(tb testing.TB, databaseURL string) *Proxy {
	tb.Helper()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "lspx")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		server: &config.Config, folder: folder,
		conns: make(map[*conn]struct{}), deaf: make(map[uint32]struct{}),
	}
	p.open = sync.NewCond(&p.mu)
	tb.Cleanup(p.stop)
	if err := p.listen(); err != nil {
		tb.Fatal(err)
	}
	return p
}

// URL returns the database's URL through the proxy.
func (p *Proxy) URL() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d",
		url.PathEscape(p.server.User), url.PathEscape(p.server.Database), p.folder, port)
}

// Cut adds a fault.
func (p *Proxy) Cut(c Cut) *Hook {
	return p.add(&Hook{statement: c.Statement, stage: c.Stage, left: max(1, c.Times), do: c.Do, cut: true})
}

// On runs f each time a statement reaches a stage. The statement waits for f.
func (p *Proxy) On(statement string, stage Stage, f func()) *Hook {
	return p.add(&Hook{statement: statement, stage: stage, left: -1, do: f})
}

// OnNotification runs f for each notification that the server sends, instead of the f before. The connection waits for f. If f returns false, the client does not
// get the notification, and nothing else shows that.
func (p *Proxy) OnNotification(f func(payload string) (arrives bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrives = f
}

// isLost reports whether a message does not reach the client.
func (p *Proxy) isLost(message pgproto3.BackendMessage) bool {
	notification, is := message.(*pgproto3.NotificationResponse)
	if !is {
		return false
	}
	p.mu.Lock()
	arrives := p.arrives
	p.mu.Unlock()
	return arrives != nil && !arrives(notification.Payload)
}

func (p *Proxy) add(h *Hook) *Hook {
	h.done = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	// A new slice without finished hooks, because at reads the old one.
	p.hooks = append(slices.DeleteFunc(slices.Clone(p.hooks), func(h *Hook) bool { return !h.armed() }), h)
	return h
}

// CutAll closes all connections, like a network failure, and returns their number.
func (p *Proxy) CutAll() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
	return len(p.conns)
}

// Refuse makes the proxy refuse new connections like a stopped server, or accept them again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	listener := p.listener
	p.mu.Unlock()
	switch {
	case refuse && listener != nil:
		_ = listener.Close() // the file stays, so connections are refused
		p.mu.Lock()
		p.listener = nil
		p.mu.Unlock()
	case !refuse && listener == nil:
		if err := p.listen(); err != nil {
			panic(err) // it could listen on this path before
		}
	}
}

// Lead connects all new clients to another server, like a pooler after a failover, and closes the
// old connections. The database's name stays.
func (p *Proxy) Lead(tb testing.TB, databaseURL string) {
	tb.Helper()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	p.mu.Lock()
	p.server = &config.Config
	p.mu.Unlock()
	p.CutAll()
}

// Stall stops all messages, or lets them pass again.
func (p *Proxy) Stall(stall bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stall
	p.open.Broadcast()
}

// Slow delays all messages to the server.
func (p *Proxy) Slow(latency time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = latency
}

// pass delays a message, and waits while the proxy is stalled.
func (p *Proxy) pass() {
	p.mu.Lock()
	latency := p.latency
	p.mu.Unlock()
	time.Sleep(latency)
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled && !p.closed {
		p.open.Wait()
	}
}

func (p *Proxy) listen() error {
	path := filepath.Join(p.folder, ".s.PGSQL."+strconv.Itoa(port))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pgproxy: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return fmt.Errorf("pgproxy: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = listener
	p.wg.Go(func() { p.accept(listener) })
	return nil
}

func (p *Proxy) accept(listener *net.UnixListener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		c := &conn{proxy: p, client: client}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			_ = client.Close()
			return
		}
		p.conns[c] = struct{}{}
		p.wg.Go(c.run)
		p.mu.Unlock()
	}
}

func (p *Proxy) forget(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) stop() {
	p.Refuse(true)
	p.mu.Lock()
	p.closed = true
	p.open.Broadcast()
	p.mu.Unlock()
	p.CutAll()
	p.wg.Wait()
	_ = os.RemoveAll(p.folder)
}

// at runs the hooks of a statement's stage. With cutting, it returns the cuts, which have not fired
// yet.
func (p *Proxy) at(sql string, stage Stage, cutting bool) (cuts []*Hook) {
	p.mu.Lock()
	hooks := p.hooks
	p.mu.Unlock()
	for _, h := range hooks {
		if h.cut != cutting || !h.claims(sql, stage) {
			continue
		}
		if cutting {
			cuts = append(cuts, h)
			continue
		}
		h.fire()
	}
	return cuts
}

// dial connects to the server.
func (p *Proxy) dial() (net.Conn, error) {
	p.mu.Lock()
	network, address := pgconn.NetworkAddress(p.server.Host, p.server.Port)
	p.mu.Unlock()
	var d net.Dialer
	return d.DialContext(context.Background(), network, address)
}
