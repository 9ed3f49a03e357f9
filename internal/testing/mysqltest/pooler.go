package mysqltest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// Pooler gives each transaction of its clients to another session of the server, as ProxySQL and MaxScale do. Before that it
// resets the session, so that nothing of a client survives, and spoils it with a statement: what another client may have left there.
type Pooler struct {
	// Address is host:port for clients.
	Address string

	target, spoil string
	listener      net.Listener
	work          sync.WaitGroup

	mu       sync.Mutex
	idle     []*sessionConn // the one that was used longest ago comes first
	all      []net.Conn
	switched int // transactions that got another session than the one before
	lost     []byte
}

// sessionConn is an authenticated connection to the server.
type sessionConn struct {
	net.Conn
	read *bufio.Reader
}

// NewPooler puts a pooler before a server. It ends with the test.
func NewPooler(tb testing.TB, m *Server, spoil string) *Pooler {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Pooler{Address: listener.Addr().String(), target: m.Address, spoil: spoil, listener: listener}
	p.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.keep(conn)
			p.work.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = p.serve(&sessionConn{conn, bufio.NewReader(conn)}) // the client sees that it ended
			})
		}
	})
	tb.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, conn := range p.all {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.work.Wait()
	})
	return p
}

// Switched is how many transactions got another session than the client's last one.
func (p *Pooler) Switched() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.switched
}

// Lose lets the pooler answer each packet that contains a text with error 2013, as a proxy may whose connection to the server broke
// during the packet. The server carries the packet out. An empty text ends that.
func (p *Pooler) Lose(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = []byte(text)
}

func (p *Pooler) loses(packet []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lost) > 0 && bytes.Contains(packet, p.lost)
}

func (p *Pooler) keep(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, conn)
}

// serve lets a client authenticate at the server by a session of its own, which then belongs to all.
func (p *Pooler) serve(client *sessionConn) error {
	conn, err := net.Dial("tcp", p.target)
	if err != nil {
		return err
	}
	p.keep(conn)
	own := &sessionConn{conn, bufio.NewReader(conn)}
	if err := authenticate(client, own); err != nil {
		return err
	}
	p.give(own)
	var last, session *sessionConn
	for {
		command, err := packetOf(client.read)
		if err != nil || command[4] == comQuit {
			if session != nil {
				_ = session.Close() // in the middle of a transaction
			}
			return err
		}
		if session == nil {
			if session, err = p.take(last); err != nil {
				return err
			}
		}
		if _, err := session.Write(command); err != nil {
			return err
		}
		to, loses := io.Writer(client), p.loses(command)
		if loses {
			to = io.Discard
		}
		inTransaction, err := relay(session.read, to)
		if loses && err == nil {
			_, err = client.Write(errLost)
		}
		if err != nil {
			_ = session.Close()
			return err
		}
		if last = session; !inTransaction {
			p.give(session)
			session = nil
		}
	}
}

func (p *Pooler) give(s *sessionConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, s)
}

// take returns a session, another than the last one if there is one, resets and spoils it.
func (p *Pooler) take(last *sessionConn) (*sessionConn, error) {
	p.mu.Lock()
	if len(p.idle) == 0 {
		p.mu.Unlock()
		return nil, errors.New("mysqltest: no session is idle") // each client has given one
	}
	s := p.idle[0]
	p.idle = p.idle[1:]
	if last != nil && s != last {
		p.switched++
	}
	p.mu.Unlock()
	if err := s.command([]byte{comReset}); err != nil {
		return nil, err
	}
	if p.spoil != "" {
		if err := s.command(append([]byte{comQuery}, p.spoil...)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// command carries out a command of the pooler's own.
func (s *sessionConn) command(text []byte) error {
	head := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
	if _, err := s.Write(append(head, text...)); err != nil {
		return err
	}
	_, err := relay(s.read, io.Discard)
	return err
}

// Of the protocol of MySQL: https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html.
const (
	comQuit, comQuery, comReset           = 0x01, 0x03, 0x1f
	headOK, headMore, headEOF, headErr    = 0x00, 0x01, 0xfe, 0xff
	statusInTransaction, statusMoreResult = 0x0001, 0x0008
	fastAuth                              = 0x03 // of caching_sha2_password
)

// errLost is the packet of an error 2013, in answer to a command.
var errLost = []byte("\x14\x00\x00\x01\xff\xdd\x07#HY000server lost")

// packetOf reads one packet, with its head of four bytes.
func packetOf(from *bufio.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	size := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
	if size == 0 || size == 1<<24-1 {
		return nil, fmt.Errorf("mysqltest: a packet of %d bytes", size)
	}
	packet := make([]byte, len(head)+size)
	copy(packet, head)
	_, err := io.ReadFull(from, packet[len(head):])
	return packet, err
}

// authenticate passes a handshake on until the server accepts the client.
func authenticate(client, server *sessionConn) error {
	fromServer := true
	for step := 0; ; step++ {
		from, to := server, client
		if !fromServer {
			from, to = client, server
		}
		packet, err := packetOf(from.read)
		if err != nil {
			return err
		}
		if step == 0 {
			oldEnds(packet)
		}
		if _, err := to.Write(packet); err != nil {
			return err
		}
		switch {
		case step == 0, !fromServer: // the greeting, and the client's answers
			fromServer = !fromServer
		case packet[4] == headOK:
			return nil
		case packet[4] == headMore && packet[5] == fastAuth: // MySQL knows the password, and says OK next
		case packet[4] == headEOF, packet[4] == headMore:
			fromServer = false
		default:
			return errors.New("mysqltest: the server refuses the client")
		}
	}
}

// oldEnds makes the greeting say that results end with an EOF, which is simpler to find.
func oldEnds(greeting []byte) {
	version := bytes.IndexByte(greeting[5:], 0)
	greeting[5+version+1+4+8+1+2+1+2+1] &^= 1 // bit 24 of the capabilities
}

// relay passes all results of a command on, and says whether the session is in a transaction then.
func relay(from *bufio.Reader, to io.Writer) (inTransaction bool, err error) {
	status := uint16(0)
	for {
		next := func() (packet []byte, last bool, err error) {
			if packet, err = packetOf(from); err != nil {
				return nil, false, err
			}
			_, err = to.Write(packet)
			return packet, len(packet) < 4+9 && packet[4] == headEOF, err
		}
		packet, _, err := next()
		switch {
		case err != nil:
			return false, err
		case packet[4] == headErr:
			return status&statusInTransaction != 0, nil // as before
		case packet[4] == headOK:
			status = statusOf(packet[5:])
		default:
			for parts := 0; parts < 2; { // the columns, and the rows
				packet, last, err := next()
				if err != nil {
					return false, err
				}
				if packet[4] == headErr {
					return status&statusInTransaction != 0, nil
				}
				if last {
					parts++
					status = binary.LittleEndian.Uint16(packet[7:])
				}
			}
		}
		if status&statusMoreResult == 0 {
			return status&statusInTransaction != 0, nil
		}
	}
}

// statusOf reads the status after two numbers of an OK.
func statusOf(body []byte) uint16 {
	for range 2 {
		switch body[0] {
		case 0xfc:
			body = body[3:]
		case 0xfd:
			body = body[4:]
		case 0xfe:
			body = body[9:]
		default:
			body = body[1:]
		}
	}
	return binary.LittleEndian.Uint16(body)
}
