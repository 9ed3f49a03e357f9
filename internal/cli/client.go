package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const (
	dialTimeout = 5 * time.Second
	// answerTimeout is longer than the sidecar waits for its store by default.
	answerTimeout = 30 * time.Second
	// maxAnswer limits what is read of an answer: a full page of locks, each with its data.
	maxAnswer = 32 << 20
)

// client talks to the sidecar behind a socket. The end of the process closes its connections and so
// ends a waiting call. It is safe for concurrent use.
type client struct {
	socket  string
	version string // of this program
	http    http.RoundTripper
	// session is the id of the explicit session that its calls join; empty: none.
	session string
	// patience is how long an answer may take that need not wait for a lock.
	patience time.Duration
}

// newClient uses --socket, else the variable of the sidecar.
func (a *app) newClient() *client {
	return newClient(cmp.Or(a.socket, config.Socket(a.source)), a.version)
}

func newClient(socket, version string) *client {
	dialer := net.Dialer{Timeout: dialTimeout}
	return &client{socket: socket, version: version, patience: answerTimeout, http: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
		// One call, one connection: no lock hangs on it, and no failed call is repeated.
		DisableKeepAlives:  true,
		DisableCompression: true,
	}}
}

func (c *client) withPatience(patience time.Duration) *client {
	other := *c
	other.patience = patience
	return &other
}

// call sends one request and decodes its answer into answer (nil: not wanted). Any status but 200 and
// 202 is a *problemError. wait is added to the time limit of the answer; below zero there is none.
func (c *client) call(method, path string, body, answer any, wait time.Duration) error {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if wait >= 0 {
		ctx, cancel = context.WithTimeout(ctx, c.patience+wait)
	}
	defer cancel()
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return &unansweredError{c.explain(err)}
	case len(text) > maxAnswer:
		return fmt.Errorf("the answer of the sidecar at %s has more than %d bytes", c.socket, maxAnswer)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted:
		return newProblem(resp.StatusCode, text)
	case answer == nil:
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer of the sidecar at %s cannot be read: %w", c.socket, err)
	}
	return nil
}

// send returns the answer to a request; close its body. A redirection is an answer, too.
func (c *client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
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
	// A command shows what is, not what this sidecar has last heard: it may not know yet of a request
	// to stop, and is not told of other pods' waiters.
	if method == http.MethodGet {
		req.Header.Set("Cache-Control", "no-cache")
	}
	if c.session != "" {
		req.Header.Set("Lock-Session", c.session)
	}
	resp, err := c.http.RoundTrip(req)
	if err == nil {
		return resp, nil
	}
	if dialing, ok := errors.AsType[*net.OpError](err); ok && dialing.Op == "dial" {
		return nil, c.explain(err)
	}
	return nil, &unansweredError{c.explain(err)}
}

// unansweredError is a call without an answer: it may have been carried out.
type unansweredError struct{ error }

func (e *unansweredError) Unwrap() error { return e.error }

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
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf(
			"the sidecar at %s closed the connection before it answered", c.socket))
	case errors.Is(err, context.DeadlineExceeded):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf("the sidecar at %s does not answer in time", c.socket))
	}
	return exitcode.With(exitcode.Unavailable, fmt.Errorf("no answer from the sidecar at %s: %w", c.socket, err))
}
