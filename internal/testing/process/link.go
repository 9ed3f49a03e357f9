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
	muted    bool       // answers are dropped
	held     *sync.Cond // requests wait until holds is false, and answers until delays is
	holds    bool
	delays   bool
	lost     func(answer []byte) bool // which answers are dropped; nil: none
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
	l.held = sync.NewCond(&l.mu)
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

// Mute drops what servers answer, until Mend. What clients send arrives.
func (l *Link) Mute() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.muted = true
}

// Hold keeps what clients send, until Mend or Cut. Then it arrives, also if the client has given up meanwhile.
func (l *Link) Hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = true
}

// Delay keeps what servers send, until Mend or Cut. Then it arrives.
func (l *Link) Delay() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delays = true
}

// Lose drops the packets of servers for which lost returns true, until Mend. Nothing else shows that, so such a packet must be a whole message.
func (l *Link) Lose(lost func(packet []byte) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = lost
}

// arrives waits while the link holds requests, or delays answers, and reports whether a packet may go on.
func (l *Link) arrives(packet []byte, answer bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !answer && l.holds || answer && l.delays {
		l.held.Wait()
	}
	return !answer || !l.muted && (l.lost == nil || !l.lost(packet))
}

func (l *Link) close() int {
	l.holds, l.delays = false, false
	l.held.Broadcast()
	for conn := range l.conns {
		_ = conn.Close()
	}
	return len(l.conns) / 2
}

// Mend ends Cut, Mute, Hold, Delay and Lose. After a Mute, all connections are closed, because they lack answers.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.muted {
		l.close()
	}
	l.cut, l.muted, l.holds, l.delays, l.lost = false, false, false, false, nil
	l.held.Broadcast()
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
		l.work.Go(func() { l.copy(client, server, true) })
		l.work.Go(func() { l.copy(server, client, false) })
	}
}

// passing is one direction of a connection.
type passing struct {
	net.Conn
	link    *Link
	answers bool
}

// Write sends on what the link lets through.
func (p passing) Write(packet []byte) (int, error) {
	if !p.link.arrives(packet, p.answers) {
		return len(packet), nil
	}
	return p.Conn.Write(packet)
}

// ReadFrom hides that of the connection, which would copy past the link.
func (p passing) ReadFrom(from io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{p}, from)
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

func (l *Link) copy(to, from net.Conn, answers bool) {
	_, _ = io.Copy(passing{to, l, answers}, from)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range []net.Conn{to, from} {
		_ = conn.Close()
		delete(l.conns, conn)
	}
}
