package process

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Link is a network connection to a server, or to an address before it, that a test can cut.
type Link struct {
	// Address is host:port for clients.
	Address string

	target   string
	listener net.Listener
	mu       sync.Mutex
	cut      bool
	cutFrom  map[string]bool
	conns    map[net.Conn]string // each with the host of its client
	work     sync.WaitGroup
}

// NewLink makes a link to host:port, such as that of a server. It ends with the test.
func NewLink(tb testing.TB, target string) *Link {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	l := &Link{Address: listener.Addr().String(), target: target, listener: listener, cutFrom: map[string]bool{}, conns: map[net.Conn]string{}}
	l.work.Go(l.accept)
	tb.Cleanup(func() {
		_ = listener.Close()
		l.Cut()
		l.work.Wait()
	})
	return l
}

// Cut closes all connections, and new ones at once, until Mend.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.close()
}

// CutFrom is Cut for the clients of one host, until MendFrom.
func (l *Link) CutFrom(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutFrom[host] = true
	for conn, from := range l.conns {
		if from == host {
			_ = conn.Close()
		}
	}
}

// MendFrom ends CutFrom.
func (l *Link) MendFrom(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.cutFrom, host)
}

// CutAll closes all connections, and returns how many there were. Clients may connect again at once.
func (l *Link) CutAll() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.close()
}

func (l *Link) close() int {
	for conn := range l.conns {
		_ = conn.Close()
	}
	return len(l.conns) / 2
}

// Mend lets clients connect again.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.target)
		if err != nil || !l.add(client, server) {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		l.work.Go(func() { l.copy(client, server) })
		l.work.Go(func() { l.copy(server, client) })
	}
}

func (l *Link) add(client, server net.Conn) bool {
	host, _, _ := net.SplitHostPort(client.RemoteAddr().String())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || l.cutFrom[host] {
		return false
	}
	l.conns[client], l.conns[server] = host, host
	return true
}

func (l *Link) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range []net.Conn{to, from} {
		_ = conn.Close()
		delete(l.conns, conn)
	}
}
