package pgproxy

import (
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is a client's connection and the server's connection behind it. After the start-up, two
// goroutines pass messages on, one in each direction.
type conn struct {
	proxy  *Proxy
	client net.Conn
	front  *pgproto3.Frontend // reads the server's messages
	back   *pgproto3.Backend  // reads the client's messages
	pid    uint32

	mu     sync.Mutex
	server net.Conn
	gone   bool // closed
	// sent contains the groups that the server has not completely answered.
	sent []*group
	// mute: the client was cut off. When the server has answered all groups (messages up to a Sync), its connection
	// is closed, too.
	mute bool
}

// group is what a client sends up to a Sync, or a simple query.
type group struct {
	bytes      []byte
	statements []string // in the order of their execution
	answered   int
	ends       bool // with a ReadyForQuery
}

func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	_ = c.client.Close()
	if c.server != nil {
		_ = c.server.Close()
	}
}

func (c *conn) run() {
	defer c.proxy.forget(c)
	defer c.close()
	if !c.startUp() {
		return
	}
	var down sync.WaitGroup
	down.Go(c.down)
	c.up()
	down.Wait()
}

// startUp passes on the messages before the first query. It declines encryption, because the proxy
// must read the messages.
func (c *conn) startUp() bool {
	c.back = pgproto3.NewBackend(c.client, c.client)
	for {
		message, err := c.back.ReceiveStartupMessage()
		if err != nil {
			return false
		}
		switch message := message.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := c.client.Write([]byte{'N'}); err != nil {
				return false
			}
		case *pgproto3.CancelRequest:
			c.cancel(message)
			return false
		case *pgproto3.StartupMessage:
			return c.connect(message) && c.logIn()
		default:
			return false
		}
	}
}

// cancel passes a cancel request on, unless its statement must be carried out. A client sends such
// a request when its connection breaks.
func (c *conn) cancel(request *pgproto3.CancelRequest) {
	c.proxy.mu.Lock()
	_, deaf := c.proxy.deaf[request.ProcessID]
	c.proxy.mu.Unlock()
	if !deaf && c.connect(request) {
		_, _ = c.server.Read(make([]byte, 1)) // the server closes the connection after the request
	}
}

// connect connects to the server and sends it the first message.
func (c *conn) connect(first pgproto3.FrontendMessage) bool {
	server, err := c.proxy.dial()
	if err != nil {
		return false
	}
	c.mu.Lock()
	c.server = server
	gone := c.gone
	c.mu.Unlock()
	if gone {
		_ = server.Close()
		return false
	}
	c.front = pgproto3.NewFrontend(server, server)
	text, err := first.Encode(nil)
	if err != nil {
		return false
	}
	_, err = server.Write(text)
	return err == nil
}

// logIn passes messages in turn until the server is ready for queries.
func (c *conn) logIn() bool {
	for {
		message, err := c.front.Receive()
		if err != nil {
			return false
		}
		c.proxy.pass()
		if !forward(c.client, message) {
			return false
		}
		switch message := message.(type) {
		case *pgproto3.BackendKeyData:
			c.pid = message.ProcessID
		case *pgproto3.ReadyForQuery:
			return true
		case *pgproto3.AuthenticationCleartextPassword, *pgproto3.AuthenticationMD5Password,
			*pgproto3.AuthenticationSASL, *pgproto3.AuthenticationSASLContinue:
			if err := c.back.SetAuthType(c.front.GetAuthType()); err != nil {
				return false
			}
			answer, err := c.back.Receive()
			if err != nil || !forward(c.server, answer) {
				return false
			}
		}
	}
}

// encodable is a message of the client or the server.
type encodable interface {
	Encode(dst []byte) ([]byte, error)
}

func forward(to net.Conn, message encodable) bool {
	text, err := message.Encode(nil)
	if err != nil {
		return false
	}
	_, err = to.Write(text)
	return err == nil
}

// up passes the client's messages on.
func (c *conn) up() {
	prepared, portals := map[string]string{}, map[string]string{}
	g := &group{}
	for {
		message, err := c.back.Receive()
		if err != nil {
			c.hangUp()
			return
		}
		if g.bytes, err = message.Encode(g.bytes); err != nil {
			c.close()
			return
		}
		switch message := message.(type) {
		case *pgproto3.Parse:
			prepared[message.Name] = message.Query
			continue
		case *pgproto3.Bind:
			portals[message.DestinationPortal] = prepared[message.PreparedStatement]
			continue
		case *pgproto3.Execute:
			g.statements = append(g.statements, portals[message.Portal])
			continue
		case *pgproto3.Describe, *pgproto3.Close:
			continue
		case *pgproto3.Query:
			g.statements = append(g.statements, message.String)
			g.ends = true
		case *pgproto3.Sync:
			g.ends = true
		}
		if !c.send(g) {
			return
		}
		g = &group{}
	}
}

// hangUp closes the server's connection of a client that has left, unless the server must still
// carry out a group.
func (c *conn) hangUp() {
	c.mu.Lock()
	mute := c.mute
	c.mu.Unlock()
	if !mute {
		c.close()
	}
}

// send passes a group to the server. It returns false if the connection was cut.
func (c *conn) send(g *group) bool {
	c.proxy.pass()
	c.each(g, BeforeSend, false)
	if cuts := c.each(g, BeforeSend, true); len(cuts) > 0 {
		fire(cuts)
		c.close()
		return false
	}
	// The hooks are taken before the server has the group, because it answers at once.
	cuts := c.each(g, AfterSend, true)
	c.mu.Lock()
	c.sent = append(c.sent, g)
	if len(cuts) > 0 {
		c.mute = true
		c.cutOff()
	}
	c.mu.Unlock()
	if _, err := c.server.Write(g.bytes); err != nil {
		c.close()
		return false
	}
	fire(cuts)
	if len(cuts) > 0 {
		return false
	}
	c.each(g, AfterSend, false)
	return true
}

// each takes the hooks of a stage for all statements of a group.
func (c *conn) each(g *group, stage Stage, cutting bool) (cuts []*Hook) {
	for _, sql := range g.statements {
		cuts = append(cuts, c.proxy.at(sql, stage, cutting)...)
	}
	return cuts
}

func fire(hooks []*Hook) {
	for _, h := range hooks {
		h.fire()
	}
}

// cutOff closes the client's connection. mu is held.
func (c *conn) cutOff() {
	c.proxy.mu.Lock()
	c.proxy.deaf[c.pid] = struct{}{}
	c.proxy.mu.Unlock()
	_ = c.client.Close()
}

// down passes the server's answers on.
func (c *conn) down() {
	defer c.close()
	var text []byte
	for {
		message, err := c.front.Receive()
		if err != nil {
			return
		}
		c.proxy.pass()
		cuts, rest := c.note(message)
		if !c.isMute() {
			if !c.proxy.isLost(message) {
				if text, err = message.Encode(text); err != nil {
					return
				}
			}
			if c.front.ReadBufferLen() == 0 || len(cuts) > 0 {
				if _, err := c.client.Write(text); err != nil {
					return
				}
				text = text[:0]
			}
		}
		if len(cuts) > 0 {
			c.mu.Lock()
			c.mute = true
			c.cutOff()
			c.mu.Unlock()
			fire(cuts)
		}
		if !rest && c.isMute() {
			return // the server has carried out all groups
		}
	}
}

func (c *conn) isMute() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mute
}

// note follows the server's answers. rest reports whether further answers must come.
func (c *conn) note(message pgproto3.BackendMessage) (cuts []*Hook, rest bool) {
	c.mu.Lock()
	for len(c.sent) > 0 && !c.sent[0].ends && c.sent[0].answered >= len(c.sent[0].statements) {
		c.sent = c.sent[1:] // a Flush or a part of a COPY has no confirmation
	}
	var complete string
	if len(c.sent) > 0 {
		g := c.sent[0]
		switch message.(type) {
		case *pgproto3.CommandComplete, *pgproto3.EmptyQueryResponse, *pgproto3.PortalSuspended:
			if len(g.statements) > 0 {
				complete = g.statements[min(g.answered, len(g.statements)-1)]
			}
			g.answered++
		case *pgproto3.ReadyForQuery:
			c.sent = c.sent[1:]
		}
	}
	rest = len(c.sent) > 0
	c.mu.Unlock()
	if complete != "" {
		c.proxy.at(complete, AfterCommandComplete, false)
		cuts = c.proxy.at(complete, AfterCommandComplete, true)
	}
	return cuts, rest
}
