// Package client calls a sidecar over its socket, and reads its answers.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const (
	dialTimeout = 5 * time.Second
	// AnswerTimeout is longer than the sidecar waits for its store by default.
	AnswerTimeout = 30 * time.Second
	// MaxAnswer limits the size of an answer: a full page of locks, each with its data, fits.
	MaxAnswer = 32 << 20
)

// Client sends calls to the sidecar at a socket. The end of the process closes its connections, which ends a
// waiting call. It is safe for concurrent use.
type Client struct {
	Socket  string
	version string // of this program
	http    http.RoundTripper
	// session is the id of the explicit session that the calls join; empty: none.
	Session string
	// patience limits the time for an answer, not counting the wait for a lock.
	patience time.Duration
}

// New makes a client of the sidecar at a socket.
func New(socket, version string) *Client {
	dialer := net.Dialer{Timeout: dialTimeout}
	return &Client{Socket: socket, version: version, patience: AnswerTimeout, http: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		// Each call has its own connection: locks do not depend on it, and the transport repeats no failed call.
		DisableKeepAlives:  true,
		DisableCompression: true,
	}}
}

// WithPatience returns a client with another time limit.
func (c *Client) WithPatience(patience time.Duration) *Client {
	other := *c
	other.patience = patience
	return &other
}

// Call sends one request and decodes its answer into answer (nil: ignored). Any status other than 200 and 202
// is a *problemError. wait is added to the time limit of the answer; a negative one removes the limit.
func (c *Client) Call(method, path string, body, answer any, wait time.Duration) error {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if wait >= 0 {
		ctx, cancel = context.WithTimeout(ctx, c.patience+wait)
	}
	defer cancel()
	resp, err := c.Send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return &UnansweredError{c.Explain(err)}
	case len(text) > MaxAnswer:
		return fmt.Errorf("the answer of the sidecar at %s has more than %d bytes", c.Socket, MaxAnswer)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted:
		return NewProblem(resp.StatusCode, text)
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer of the sidecar at %s cannot be read: %w", c.Socket, err)
	}
	return nil
}

// Send returns the answer to a request. The caller closes its body. Redirections are not followed.
func (c *Client) Send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var encoded []byte
	if body != nil {
		var err error
		if encoded, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encoding the request: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://locksidecar"+path, bytes.NewReader(encoded))
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("User-Agent", "locksidecar/"+c.version)
	// Commands show the present state in the store. The sidecar's own may lack a new request to stop, and waiters
	// of other pods.
	if method == http.MethodGet {
		req.Header.Set("Cache-Control", "no-cache")
	}
	if c.Session != "" {
		req.Header.Set("Lock-Session", c.Session)
	}
	resp, err := c.http.RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	if dialing, ok := errors.AsType[*net.OpError](err); ok && dialing.Op == "dial" {
		return nil, c.Explain(err)
	}
	return nil, &UnansweredError{c.Explain(err)}
}

// UnansweredError is a call without an answer, which may have been carried out.
type UnansweredError struct{ error }

// Unwrap is the reason.
func (e *UnansweredError) Unwrap() error { return e.error }

// Explain describes a failed exchange for the user of the command.
func (c *Client) Explain(err error) error {
	switch {
	case len(c.Socket) > config.MaxSocketBytes:
		return exitcode.With(exitcode.Usage, fmt.Errorf("the socket's path %s has %d bytes; allowed: up to %d, as the system limits it",
			c.Socket, len(c.Socket), config.MaxSocketBytes))
	case isOther(c.Socket):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf("%s is not a socket; name the sidecar's with --socket or %sSOCKET", c.Socket, config.Prefix))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTSOCK):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf(
			"no sidecar listens at %s; start one with `locksidecar serve`, or name another socket with --socket or %sSOCKET",
			c.Socket, config.Prefix))
	case errors.Is(err, fs.ErrPermission):
		return exitcode.With(exitcode.Refused, fmt.Errorf(
			"you may not use the socket %s (its mode is %sSOCKET_MODE of the sidecar): %w", c.Socket, config.Prefix, err))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf(
			"the sidecar at %s closed the connection before it answered", c.Socket))
	case errors.Is(err, context.DeadlineExceeded):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf("the sidecar at %s does not answer in time", c.Socket))
	}
	return exitcode.With(exitcode.Unavailable, fmt.Errorf("no answer from the sidecar at %s: %w", c.Socket, err))
}

// isOther reports whether there is a file at the path that is not a socket.
func isOther(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type() != fs.ModeSocket
}

// NextEvent reads one server-sent event. The caller ignores unknown events of later versions.
func NextEvent(lines *bufio.Reader) (name string, data []byte, err error) {
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", nil, err
		}
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			name = value
		case field == "data":
			data = []byte(value)
		case field == "" && value == "" && name != "":
			return name, data, nil
		}
	}
}

// PageSize is the API's maximum of locks, or waiting calls, for one page.
const PageSize = 1000

// Page is a part of a list of locks, or of waiting calls.
type Page struct {
	Locks      []json.RawMessage `json:"locks"`
	Waiters    []json.RawMessage `json:"waiters"`
	NextCursor *string           `json:"next_cursor"` // null: there are no more
}

// Pages reads a list page by page, up to limit items (0: all). It returns the cursor of the rest, if there is more.
func (c *Client) Pages(path string, query url.Values, limit int, each func(*Page) error) (next *string, err error) {
	for read := 0; ; {
		size := PageSize
		if limit > 0 {
			size = min(size, limit-read)
		}
		query.Set("limit", strconv.Itoa(size))
		// A plus means a space only in forms.
		encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
		var p Page
		if err := c.Call(http.MethodGet, path+"?"+encoded, nil, &p, 0); err != nil {
			return nil, err
		}
		if err := each(&p); err != nil {
			return nil, err
		}
		read += len(p.Locks) + len(p.Waiters)
		if p.NextCursor == nil || limit > 0 && read >= limit {
			return p.NextCursor, nil
		}
		query.Set("cursor", *p.NextCursor)
	}
}
