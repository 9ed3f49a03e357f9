package inject

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

// halfSent begins a review on a connection of its own, and sends nearly all of its body.
func (c *cluster) halfSent() *tls.Conn {
	c.t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: c.ca.Pool(), ServerName: serverName}}
	conn, err := dialer.DialContext(c.t.Context(), "tcp", c.webhook.Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /mutate HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		serverName, smallReview, strings.Repeat(" ", smallReview-1))
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.t.Fatal(err)
	}
	return conn.(*tls.Conn)
}

// The newest connections stay, so that API servers and probes always get in.
// Proves: threat webhook client
func TestHalfSentReviewsAreLimited(t *testing.T) {
	c := startWith(t, time.Now().Add(time.Hour), "", time.Minute) // a slow machine needs seconds to connect so often
	first := c.halfSent()
	var conns []*tls.Conn
	for range maxConnections {
		conns = append(conns, c.halfSent())
	}
	began := time.Now()
	_ = first.SetReadDeadline(began.Add(patience))
	if _, err := first.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the oldest connection stays")
	}
	for range 2 {
		if out := c.review("CREATE", "Pod", asked); !out.Allowed {
			t.Errorf("got %+v", out)
		}
		if got := c.do("GET", "/healthz", "", nil); got.status != 200 {
			t.Errorf("got %+v", got)
		}
		c.client.CloseIdleConnections() // the second time, all connect again
	}
	if open := c.webhook.listener.count(); open > maxConnections {
		t.Errorf("%d connections are open", open)
	}
	if c.log.count("too many connections") != 1 {
		t.Errorf("log:\n%s", c.log)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	c.client.CloseIdleConnections()
	within(t, "the connections are gone", func() bool { return c.webhook.listener.count() == 0 })
}

// A connection on which an API server asks stays, whoever connects meanwhile.
// Proves: threat webhook client
func TestConnectionsWithReviewsStay(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	c.review("CREATE", "Pod", asked)
	within(t, "one connection", func() bool { return c.webhook.listener.count() == 1 })
	own := c.webhook.listener.all()[0]
	for i := range 2 * maxConnections {
		conn, err := net.Dial("tcp", c.webhook.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%(maxConnections/2) == 0 {
			within(t, "it is accepted", func() bool { return c.webhook.listener.count() > min(i, maxConnections-1) })
			c.review("CREATE", "Pod", asked)
		}
	}
	if !slices.Contains(c.webhook.listener.all(), own) {
		t.Error("the API server's connection is closed")
	}
}

// all is a copy of the list: the webhook accepts connections meanwhile.
func (l *connections) all() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []any
	for e := l.open.Front(); e != nil; e = e.Next() {
		open = append(open, e.Value)
	}
	return open
}

// Proves: threat webhook client
func TestOnlyClientsOfTheCA(t *testing.T) {
	ca, other := certtest.New(t), certtest.New(t)
	file := certtest.MountFiles(t, map[string][]byte{"ca.crt": ca.PEM()})
	c := startFor(t, time.Now().Add(time.Hour), file.File("ca.crt"))
	review := func(certificates ...tls.Certificate) answer {
		t.Helper()
		c.client.CloseIdleConnections()
		c.client.Transport = c.trusting(certificates...)
		for _, path := range []string{"/healthz", "/readyz"} { // the kubelet has no certificate
			if got := c.do("GET", path, "", nil); got.status != 200 {
				t.Errorf("%s: %+v", path, got)
			}
		}
		return c.do("POST", "/mutate", "application/json", strings.NewReader(reviewOf("CREATE", "Pod", asked)))
	}
	right, wrong := pair(t, ca.IssueClient("apiserver")), pair(t, other.IssueClient("apiserver"))
	for name, tried := range map[string]struct {
		certificates []tls.Certificate
		status       int
		says         string
	}{
		"right":            {[]tls.Certificate{right}, 200, `"allowed":true`},
		"none":             {nil, 401, "a review needs a client certificate of the CA that --client-ca names"},
		"another CA's":     {[]tls.Certificate{wrong}, 401, "unknown authority"},
		"not for a client": {[]tls.Certificate{pair(t, ca.Issue("apiserver", time.Now().Add(time.Hour)))}, 401, "incompatible key usage"},
	} {
		if got := review(tried.certificates...); got.status != tried.status || !strings.Contains(got.body, tried.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if !c.log.has(`msg="call refused" status=401`) {
		t.Errorf("log:\n%s", c.log)
	}

	file.Replace(map[string][]byte{"ca.crt": other.PEM()})
	if got := review(wrong); got.status != 200 {
		t.Errorf("a new CA: %+v", got)
	}
	if got := review(right); got.status != 401 {
		t.Errorf("the CA before: %+v", got)
	}
	file.Replace(map[string][]byte{"ca.crt": []byte("garbage")})
	if got := review(wrong); got.status != 200 || !c.log.has("the CA of clients in "+file.File("ca.crt")) {
		t.Errorf("a CA that is none: %+v\n%s", got, c.log)
	}
	c.client.CloseIdleConnections()
}

func pair(t *testing.T, made certtest.Pair) tls.Certificate {
	t.Helper()
	certificate, err := tls.X509KeyPair(made.Cert, made.Key)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func (l *connections) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.Len()
}
