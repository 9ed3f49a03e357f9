package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const (
	dialTimeout = 5 * time.Second
	// answerTimeout is longer than the sidecar waits for its store by default.
	answerTimeout = 30 * time.Second
	// maxAnswer limits what is read of an answer: a full page of locks, each with
	// its data.
	maxAnswer = 32 << 20
)

// client talks to the sidecar behind a socket. Interrupting the process closes
// its connection, which ends a call that waits.
type client struct {
	socket  string
	version string // of this program
	http    *fasthttp.HostClient
	// session is the id of the explicit session that its calls join; empty: none.
	session string
	// patience is how long an answer may take that need not wait for a lock.
	patience time.Duration
	// unanswered: the last call may have been carried out, and no answer came.
	unanswered bool
}

// newClient uses --socket, else the variable of the sidecar.
func (a *app) newClient() *client {
	socket := a.socket
	if socket == "" {
		socket = config.Socket(a.lookup)
	}
	return newClient(socket, a.version)
}

// lookup finds a variable of the environment.
func (a *app) lookup(name string) (string, bool) {
	if a.source.Lookuper != nil {
		return a.source.Lookuper.Lookup(name)
	}
	return os.LookupEnv(name)
}

func newClient(socket, version string) *client {
	c := &client{socket: socket, version: version, patience: answerTimeout}
	c.http = &fasthttp.HostClient{
		Name: "locksidecar/" + version,
		Addr: "locksidecar",
		Dial: func(string) (net.Conn, error) { return c.dial() },
		// A key may be "..": nothing may tidy up the path.
		DisablePathNormalizing: true,
		MaxResponseBodySize:    maxAnswer,
		// A repeated acquire would be a second acquire.
		MaxIdemponentCallAttempts: 1,
	}
	return c
}

func (c *client) dial() (net.Conn, error) {
	dialer := net.Dialer{Timeout: min(dialTimeout, c.patience)}
	return dialer.DialContext(context.Background(), "unix", c.socket)
}

// call sends one request and decodes its answer into answer (nil: not wanted).
// Any status but 200 and 202 is a *problemError. wait is added to the time in which the
// answer must come; below zero there is no limit.
func (c *client) call(method, path string, body, answer any, wait time.Duration) error {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	req.Header.SetMethod(method)
	req.SetRequestURI("http://locksidecar" + path)
	// One call, one connection: no lock of these commands hangs on it.
	req.SetConnectionClose()
	// Who looks wants to know what is, not what this sidecar has last heard: that a lock is asked
	// to stop may still be on its way to it, and who of other pods waits it is not told at all.
	if method == fasthttp.MethodGet {
		req.Header.Set("Cache-Control", "no-cache")
	}
	if c.session != "" {
		req.Header.Set("Lock-Session", c.session)
	}
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		req.SetBody(encoded)
	}
	if wait >= 0 {
		c.http.ReadTimeout = c.patience + wait
	}
	if err := c.http.Do(req, resp); err != nil {
		dialing, ok := errors.AsType[*net.OpError](err)
		c.unanswered = !ok || dialing.Op != "dial"
		return c.explain(err)
	}
	if status := resp.StatusCode(); status != fasthttp.StatusOK && status != fasthttp.StatusAccepted {
		return newProblem(resp.StatusCode(), resp.Body())
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(resp.Body(), answer); err != nil {
		return fmt.Errorf("the answer of the sidecar at %s cannot be read: %w", c.socket, err)
	}
	return nil
}

// explain says what a failed exchange means for whoever typed the command.
func (c *client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTSOCK):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf(
			"no sidecar listens at %s; start one with `locksidecar serve`, or name another socket with --socket or %sSOCKET",
			c.socket, config.Prefix))
	case errors.Is(err, fs.ErrPermission):
		return exitcode.With(exitcode.Refused, fmt.Errorf(
			"you may not use the socket %s (its mode is %sSOCKET_MODE of the sidecar): %w", c.socket, config.Prefix, err))
	case errors.Is(err, fasthttp.ErrConnectionClosed), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf(
			"the sidecar at %s closed the connection before it answered", c.socket))
	}
	return exitcode.With(exitcode.Unavailable, fmt.Errorf("no answer from the sidecar at %s: %w", c.socket, err))
}

// lockPath is the path of a key. The key is percent-encoded wholly.
func lockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

// problemError is an answer that is not what was asked for: application/problem+json.
type problemError struct {
	Status        int         `json:"status"`
	Code          string      `json:"code"`
	Detail        string      `json:"detail"`
	Reason        string      `json:"reason"`
	Holder        *lockHolder `json:"holder"`
	QueueLength   *int        `json:"queue_length"`
	QueuePosition *int        `json:"queue_position"`
}

func newProblem(status int, body []byte) error {
	var e problemError
	if json.Unmarshal(body, &e) != nil || e.Code == "" {
		return fmt.Errorf("the sidecar answered %d: %.200q", status, body)
	}
	e.Status = status
	return &e
}

// oneLine is for the errors of the database's driver, which have a line for each address.
var oneLine = strings.NewReplacer("\n\t", " ", "\n", " ", "\t", " ")

// Error is for people, and printable.
func (e *problemError) Error() string {
	text := printable(oneLine.Replace(e.Detail))
	if text == "" {
		text = fmt.Sprintf("the sidecar answered %d %s", e.Status, printable(e.Code))
	}
	if e.Holder != nil {
		text = "not granted: " + e.Holder.String()
	}
	if e.QueueLength != nil && *e.QueueLength > 0 {
		text += fmt.Sprintf("; waiting: %d", *e.QueueLength)
	}
	if e.QueuePosition != nil {
		text += fmt.Sprintf("; place in the queue: %d", *e.QueuePosition)
	}
	return text
}

// lockHolder is who has a lock.
type lockHolder struct {
	Pod         string          `json:"pod"`
	Session     *string         `json:"session"`
	Owner       *string         `json:"owner"`
	AcquiredAt  time.Time       `json:"acquired_at"`
	HeldMS      int64           `json:"held_ms"`
	ExpiresInMS int64           `json:"expires_in_ms"`
	Data        json.RawMessage `json:"data"`
}

// String is for people, and printable.
func (h *lockHolder) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "held by pod %s", printable(h.Pod))
	if h.Session != nil {
		fmt.Fprintf(&text, ", session %s", printable(*h.Session))
	}
	if h.Owner != nil {
		fmt.Fprintf(&text, ", owner %s", printable(*h.Owner))
	}
	fmt.Fprintf(&text, ", for %s, ", human(h.HeldMS))
	if !h.renewed() {
		text.WriteString("expires ")
	}
	text.WriteString(h.expiry())
	return text.String()
}

// renewed says whether the holder's sidecar renews the lock: it does for those of sessions.
func (h *lockHolder) renewed() bool { return h.Session != nil }

func (h *lockHolder) bind() string {
	if h.renewed() {
		return "session"
	}
	return "ttl"
}

// expiry is when the lock ends if nobody releases it. One that is renewed does not.
func (h *lockHolder) expiry() string {
	if h.renewed() {
		return "renewed"
	}
	return "in " + human(h.ExpiresInMS)
}

// human writes milliseconds for people: tenths of a second are enough.
func human(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Round(100 * time.Millisecond)
	}
	return d.String()
}

// lockView is one lock as GET shows it.
type lockView struct {
	Key         string      `json:"key"`
	Type        string      `json:"type"`
	State       string      `json:"state"`
	Holder      *lockHolder `json:"holder"`
	QueueLength int         `json:"queue_length"`
	Stopping    *struct {
		Reason      *string   `json:"reason"`
		RequestedAt time.Time `json:"requested_at"`
	} `json:"stopping"`
}
