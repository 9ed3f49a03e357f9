// Package wire is a connection to a sidecar for tests, and nothing more: a test may open
// thousands of them, look at each answer's head, or measure how long a call takes.
package wire

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Conn is a connection to a sidecar, one call at a time.
type Conn struct {
	net.Conn
	// In has what the sidecar sent.
	In *bufio.Reader
}

// Answer is what was answered.
type Answer struct {
	Status     int         `json:"-"`
	Header     http.Header `json:"-"`
	RetryAfter string      `json:"-"`
	// Closes: the sidecar closes the connection after it.
	Closes bool   `json:"-"`
	Body   []byte `json:"-"`

	Code   string `json:"code"`
	Detail string `json:"detail"`
	Token  int64  `json:"token"`
}

// Dial connects to a sidecar's socket.
func Dial(socket string) (*Conn, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return New(c), nil
}

// New makes one of a connection.
func New(c net.Conn) *Conn { return &Conn{Conn: c, In: bufio.NewReaderSize(c, 1<<10)} }

// Call sends a request and reads its answer, for that long.
func (c *Conn) Call(limit time.Duration, method, path, body string, headers ...string) (Answer, error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	if err := c.Send(method, path, body, headers...); err != nil {
		return Answer{}, err
	}
	return c.Receive(method)
}

// Send sends a request.
func (c *Conn) Send(method, path, body string, headers ...string) error {
	return Send(c, method, path, body, headers...)
}

// Send writes a request.
func Send(w io.Writer, method, path, body string, headers ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: sidecar\r\n", method, path)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	_, err := io.WriteString(w, b.String())
	return err
}

// Receive reads the answer of a request with this method: that of HEAD has no body.
func (c *Conn) Receive(method string) (Answer, error) {
	res, err := http.ReadResponse(c.In, &http.Request{Method: method})
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	a := Answer{Status: res.StatusCode, Header: res.Header, RetryAfter: res.Header.Get("Retry-After"), Closes: res.Close}
	if a.Body, err = io.ReadAll(res.Body); err == nil && len(a.Body) > 0 && strings.Contains(res.Header.Get("Content-Type"), "json") {
		err = json.Unmarshal(a.Body, &a)
	}
	return a, err
}

// Session makes the connection the event stream of a new session, and returns its id.
// The rest of the stream is not read.
func (c *Conn) Session(limit time.Duration) (id string, a Answer, err error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	if err := c.Send("POST", "/v1/sessions", "{}"); err != nil {
		return "", Answer{}, err
	}
	res, err := http.ReadResponse(c.In, nil) //nolint:bodyclose // closing would wait for the end of the stream
	if err != nil {
		return "", Answer{}, err
	}
	a.Status, a.RetryAfter = res.StatusCode, res.Header.Get("Retry-After")
	if res.StatusCode != 200 {
		err = json.NewDecoder(res.Body).Decode(&a)
		return "", a, err
	}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		var first struct {
			Session string `json:"session"`
		}
		if ok && json.Unmarshal([]byte(data), &first) == nil && first.Session != "" {
			return first.Session, a, c.SetDeadline(time.Time{})
		}
	}
	return "", a, fmt.Errorf("wire: the stream does not begin with the session")
}
