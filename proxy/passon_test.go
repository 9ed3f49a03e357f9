package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
)

// besideTheOld starts a server that is replaced, and the one that replaces it.
func besideTheOld(t *testing.T) (old, fresh *fixture) {
	t.Helper()
	socket := filepath.Join(tempDir(t), "b")
	old = start(t, func(c *Config) { c.Beside = socket })
	return old, start(t, func(c *Config) { c.Others = func() ([]string, error) { return []string{socket}, nil } })
}

// passing connects to a server as another one does that passes a call on.
func (f *fixture) passing() *client { return dialTo(f.t, "unix", f.cfg.Beside) }

// A server hands a grant back if the one that passed the call on says that the caller has left: before the answer, and after it. The end of the
// connection alone says nothing.
// Proves: promise 7
func TestPassedOnGrants(t *testing.T) {
	old, _ := besideTheOld(t)
	_, id := old.explicit()
	joins := "Lock-Session: " + id

	c := old.passing()
	c.do("PUT", "/v1/locks/delivered", "", joins).want(t, 200, "")
	_ = c.Close()
	old.streamsOnly()
	await.Silent(t, old.locks.handedBack, "grant handed back")
	if !old.locks.holds(t, "delivered") {
		t.Error("the lock of a delivered grant is lost")
	}

	c = old.passing()
	c.do("PUT", "/v1/locks/left", "", joins).want(t, 200, "")
	c.send(callerLeft)
	_ = c.Close()
	if g := await.Receive(t, old.locks.handedBack, "the grant handed back"); g.Key != "left" {
		t.Errorf("handed back: %s", g.Key)
	}

	old.locks.take(t, "taken")
	c = old.passing()
	c.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, joins)
	await.Receive(t, old.locks.waiting, "the wait")
	c.send(callerLeft)
	await.Receive(t, old.locks.abandoned, "the end of the wait")
	c.read().want(t, 410, "session_ended")
}

// streamsOnly waits until only the event stream of a session is open.
func (f *fixture) streamsOnly() {
	f.t.Helper()
	await.Until(f.t, "the connections are gone", func() bool { return len(f.conns.Conns()) == 1 })
}

// Calls for a session of the old server come to the new one, and are carried out there. A caller that leaves gets nothing.
func TestPassedOnToTheOldServer(t *testing.T) {
	old, fresh := besideTheOld(t)
	_, id := old.explicit()
	joins := "Lock-Session: " + id
	c := fresh.dial()
	c.do("PUT", "/v1/locks/a", `{"data":"of the old"}`, joins).want(t, 200, "")
	c.do("POST", "/v1/locks", `{"keys":["b","c"]}`, joins).want(t, 200, "")
	c.do("GET", "/v1/locks/a", "", joins).want(t, 200, "")
	c.do("PUT", "/v1/locks/d", "", "Lock-Session: unknown").want(t, 410, "session_ended")
	c.do("PUT", "/v1/locks/d", "", "Lock-Session: ../locks/a").want(t, 410, "session_ended")
	old.streamsOnly()
	await.Silent(t, old.locks.handedBack, "grant handed back")

	old.locks.take(t, "taken")
	leaver := fresh.dial()
	leaver.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, joins)
	await.Receive(t, old.locks.waiting, "the wait")
	_ = leaver.Close()
	await.Receive(t, old.locks.abandoned, "the end of the wait")
	old.streamsOnly()
	if !old.locks.holds(t, "b") || fresh.locks.holds(t, "b") {
		t.Error("the locks are not the old server's")
	}
}

// other is a server as the test plays it.
type other struct {
	t  *testing.T
	ln net.Listener
	nc net.Conn
	r  *bufio.Reader
}

// playOther starts a server whose other one the test plays.
func playOther(t *testing.T, change ...func(*Config)) (*fixture, *other) {
	t.Helper()
	ln, err := net.Listen("unix", filepath.Join(tempDir(t), "b"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	change = append(change, func(c *Config) { c.Others = func() ([]string, error) { return []string{ln.Addr().String()}, nil } })
	return start(t, change...), &other{t: t, ln: ln}
}

// next accepts a connection, and says that it knows the session. It returns the call.
func (o *other) next() *http.Request {
	o.t.Helper()
	var err error
	if o.nc, err = o.ln.Accept(); err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = o.nc.Close() })
	_ = o.nc.SetDeadline(time.Now().Add(await.Patience))
	o.r = bufio.NewReader(o.nc)
	if asked := o.read(); asked.Method != http.MethodGet || asked.URL.Path != "/v1/sessions/of-the-old" {
		o.t.Fatalf("asked: %s %s", asked.Method, asked.URL)
	}
	o.answer("200 OK", "{}")
	return o.read()
}

func (o *other) read() *http.Request {
	o.t.Helper()
	req, err := http.ReadRequest(o.r)
	if err == nil {
		_, err = io.Copy(io.Discard, req.Body)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	return req
}

func (o *other) answer(status, body string) {
	o.t.Helper()
	_, err := io.WriteString(o.nc, "HTTP/1.1 "+status+"\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	if err != nil {
		o.t.Fatal(err)
	}
}

// rest is what comes until the connection ends.
func (o *other) rest() string {
	o.t.Helper()
	text, err := io.ReadAll(o.r)
	if err != nil {
		o.t.Fatal(err)
	}
	return string(text)
}

const grantOfTheOld = `{"granted":true,"key":"a","token":7}`

// The other server learns whether the answer with its grant was written.
// Proves: promise 7
func TestAnswersOfTheOldServer(t *testing.T) {
	const joins = "Lock-Session: of-the-old"
	t.Run("read", func(t *testing.T) {
		f, old := playOther(t)
		c := f.dial()
		c.undocumented = true
		c.request("PUT", "/v1/locks/a", "", joins)
		old.next()
		old.answer("200 OK", grantOfTheOld)
		if a := c.read(); a.text != grantOfTheOld {
			t.Errorf("got %s", a.text)
		}
		if rest := old.rest(); rest != "" {
			t.Errorf("behind the call: %q", rest)
		}
	})
	t.Run("the caller leaves, and the grant is on its way", func(t *testing.T) {
		f, old := playOther(t)
		c := f.dial()
		c.request("PUT", "/v1/locks/a", `{"wait_ms":-1}`, joins)
		old.next()
		_ = c.Close()
		if b, err := old.r.ReadByte(); err != nil || string(b) != callerLeft {
			t.Fatalf("behind the call: %q, %v", b, err)
		}
		old.answer("200 OK", grantOfTheOld)
		if rest := old.rest(); !strings.Contains(rest, callerLeft) {
			t.Errorf("the other server does not learn that its grant was not delivered: %q", rest)
		}
	})
	t.Run("the answer cannot be written", func(t *testing.T) {
		f, old := playOther(t, func(c *Config) { c.Timeouts.Guard = time.Hour })
		c := f.dial()
		c.request("PUT", "/v1/locks/a", "", joins)
		old.next()
		_ = c.Close()
		old.answer("200 OK", grantOfTheOld)
		if rest := old.rest(); rest != callerLeft {
			t.Errorf("the other server does not learn that its grant was not delivered: %q", rest)
		}
	})
}

// A server that does not answer may know the session: the call is refused for the moment, and not with the answer for a session that has ended.
// Proves: promise 9
func TestSilentOldServer(t *testing.T) {
	const joins = "Lock-Session: of-the-old"
	f, old := playOther(t, func(c *Config) { c.Timeouts.PassOn = 10 * time.Millisecond })
	c := f.dial()
	a := c.do("PUT", "/v1/locks/a", "", joins) // it accepts nothing
	a.want(t, 503, "store_unavailable")
	if !strings.Contains(a.text, "did not answer") {
		t.Errorf("got %s", a.text)
	}
	nc, err := old.ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = nc.Close()

	// It knows the session, and breaks off during the call.
	f, old = playOther(t)
	c = f.dial()
	c.request("PUT", "/v1/locks/a", "", joins)
	old.next()
	_ = old.nc.Close()
	c.read().want(t, 503, "store_unavailable")

	// Nobody listens there any more.
	if err := old.ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	c.do("PUT", "/v1/locks/a", "", joins).want(t, 410, "session_ended")
}

// Not every call with a session's id is for it: the other calls are this server's.
func TestCallsThatAreNotPassedOn(t *testing.T) {
	f, _ := playOther(t)
	const joins = "Lock-Session: of-the-old"
	c := f.dial()
	c.do("GET", "/readyz", "", joins).want(t, 200, "")
	c.do("GET", "/v1", "", joins).want(t, 200, "")
	c.do("GET", "/v1/stats", "", joins).want(t, 200, "")
	c.request("POST", "/v1/sessions", "", joins)
	head, err := http.ReadResponse(c.r, nil) //nolint:bodyclose // it is a stream, and ends with the connection
	if err != nil || head.StatusCode != 200 {
		t.Fatalf("%v, %v", head, err)
	}
}

// A call that is passed on keeps neither its body nor a long head in memory while it waits, and none begins when memory is low.
// Proves: threat flood
func TestMemoryOfPassedOnCalls(t *testing.T) {
	const n = 100
	low := false
	socket := filepath.Join(tempDir(t), "b")
	old := start(t, func(c *Config) { c.Beside = socket })
	f := start(t, func(c *Config) {
		c.Others = func() ([]string, error) { return []string{socket}, nil }
		c.MemoryLow = func() bool { return low }
		c.MaxBodies = 1 << 30
	})
	_, id := old.explicit()
	joins := "Lock-Session: " + id
	old.locks.take(t, "taken")
	body := `{"wait_ms":-1}` + strings.Repeat(" ", 60<<10)
	before := liveHeap()
	clients := make([]*client, n)
	for i := range clients {
		clients[i] = f.dial()
		clients[i].request("PUT", "/v1/locks/taken", body, joins)
	}
	await.Until(t, "all calls wait", func() bool { return old.callsUnderWay() == n })
	const most = 2 * 48 << 10 // for the two servers of this test
	if each := (liveHeap() - before) / n; each > most {
		t.Errorf("a call takes %d bytes; at most %d are reckoned with", each, most)
	}
	runtime.KeepAlive(clients)
	low = true
	f.dial().do("PUT", "/v1/locks/a", "", joins).want(t, 429, "limit")
}

// A server that cannot see all others does not know that the session has ended: the call is refused for the moment. One that it sees is still asked.
// Proves: promise 9
func TestUnseenOldServers(t *testing.T) {
	unseen := errors.New("too many open files")
	f := start(t, func(c *Config) { c.Others = func() ([]string, error) { return nil, unseen } })
	f.dial().do("PUT", "/v1/locks/a", "", "Lock-Session: of-the-old").want(t, 503, "store_unavailable")

	socket := filepath.Join(tempDir(t), "b")
	old := start(t, func(c *Config) { c.Beside = socket })
	f = start(t, func(c *Config) { c.Others = func() ([]string, error) { return []string{socket}, unseen } })
	_, id := old.explicit()
	f.dial().do("PUT", "/v1/locks/a", "", "Lock-Session: "+id).want(t, 200, "")
}

// A call that is passed on has two connections, and both count.
// Proves: threat flood
func TestPassedOnCallsCountTwice(t *testing.T) {
	socket := filepath.Join(tempDir(t), "b")
	old := start(t, func(c *Config) { c.Beside = socket })
	room := NewRoom(3)
	f := start(t, func(c *Config) {
		c.Others = func() ([]string, error) { return []string{socket}, nil }
		c.Room = room
	})
	_, id := old.explicit()
	joins := "Lock-Session: " + id
	old.locks.take(t, "taken")
	one, two := f.dial(), f.dial()
	token := two.do("PUT", "/v1/locks/a", "", joins).json["token"]
	await.Until(t, "only the two connections count", func() bool { return room.Used() == 2 })
	one.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, joins)
	await.Receive(t, old.locks.waiting, "the wait")
	if used := room.Used(); used != 3 {
		t.Errorf("%d places are taken, want 3", used)
	}
	two.do("PUT", "/v1/locks/b", "", joins).want(t, 429, "limit")
	two.do("DELETE", fmt.Sprintf("/v1/locks/a?token=%.0f", token), "", joins).want(t, 200, "")
	_ = one.Close()
	await.Receive(t, old.locks.abandoned, "the end of the wait")
	await.Until(t, "its places are free", func() bool { return room.Used() == 1 })
	two.do("PUT", "/v1/locks/b", "", joins).want(t, 200, "")
}

// A call that is passed on and may wait needs a place at the old server, among the connections of the pod and of the node. Without one it is refused with the limit, and
// a release goes on. A pod has no more of them than it may have connections.
// Proves: threat flood, promise 7
func TestTheOldServerHasALimit(t *testing.T) {
	room := NewRoom(2)
	for name, limit := range map[string]func(*Config){
		"of the pod":  func(c *Config) { c.MaxConns = 2 },
		"of the node": func(c *Config) { c.Room = room },
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(tempDir(t), "b")
			old := start(t, limit, func(c *Config) { c.Beside = socket })
			f := start(t, func(c *Config) {
				c.Others = func() ([]string, error) { return []string{socket}, nil }
				c.MaxConns = 3
			})
			_, id := old.explicit() // its event stream has a place
			joins := "Lock-Session: " + id
			old.locks.take(t, "taken")
			one, two, three := f.dial(), f.dial(), f.dial()
			token := two.do("PUT", "/v1/locks/a", "", joins).json["token"]
			old.streamsOnly()
			one.request("PUT", "/v1/locks/taken", `{"wait_ms":-1}`, joins)
			await.Receive(t, old.locks.waiting, "the wait")

			refused := two.do("PUT", "/v1/locks/b", "", joins)
			refused.want(t, 429, "limit")
			refused.detail(t, "the lock server that is being replaced has too many connections")
			three.do("GET", "/v1/locks/a", "", joins).want(t, 200, "")
			two.do("DELETE", fmt.Sprintf("/v1/locks/a?token=%.0f", token), "", joins).want(t, 200, "")
			more := f.dial().do("PUT", "/v1/locks/b", "", joins)
			more.want(t, 429, "limit")
			more.detail(t, "too many connections: 3 are open")

			_ = one.Close()
			await.Receive(t, old.locks.abandoned, "the end of the wait")
			old.streamsOnly()
			two.do("PUT", "/v1/locks/b", "", joins).want(t, 200, "")
			old.Stop()
			if used := room.Used(); used != 0 {
				t.Errorf("%d places are taken by nobody", used)
			}
		})
	}
}
