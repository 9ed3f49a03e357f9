// Package client is what the commands need beside the client for Go: answers as the API sends them, page by page, errors with an exit code
// and a text for people, and what the API shows as text.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// AnswerTimeout is longer than the sidecar waits for its store by default.
const AnswerTimeout = 30 * time.Second

// Client sends calls to the sidecar at a socket. The end of the process closes its connections, which ends a
// waiting call. It is safe for concurrent use.
type Client struct {
	// Socket is the path of the socket, or the sidecar's URL.
	Socket string

	overURL bool
	calls   *locksidecar.Client
	agent   string
	// patience limits the time for an answer, not counting the wait for a lock.
	patience time.Duration
}

// New makes a client of the sidecar at a socket.
func New(socket, version string) *Client {
	c := &Client{Socket: socket, agent: "locksidecar/" + version, patience: AnswerTimeout}
	c.calls = c.Holder(locksidecar.Config{Reconnect: -1})
	return c
}

// NewOverURL makes a client of the sidecar that LOCKSIDECAR_URL names, as the client for Go reads it and its other variables.
func NewOverURL(version string) *Client {
	c := &Client{overURL: true, agent: "locksidecar/" + version, patience: AnswerTimeout}
	c.calls = c.Holder(locksidecar.Config{Reconnect: -1})
	c.Socket = c.calls.Address()
	return c
}

// Holder makes a client for Go of the same sidecar, with a session of its own.
func (c *Client) Holder(settings locksidecar.Config) *locksidecar.Client {
	settings.UserAgent, settings.Timeout = c.agent, AnswerTimeout
	if !c.overURL {
		settings.Socket = c.Socket
	}
	return locksidecar.New(settings)
}

// WithPatience returns a client with another time limit.
func (c *Client) WithPatience(patience time.Duration) *Client {
	other := *c
	other.patience = patience
	return &other
}

// Call sends one request and decodes its answer into answer (nil: ignored). A refusal is a *ProblemError. wait is added to the time limit of
// the answer; a negative one removes the limit.
func (c *Client) Call(method, path string, body, answer any, wait time.Duration) error {
	limit := wait
	if wait >= 0 {
		limit += c.patience
	}
	return c.Explain(c.calls.Call(context.Background(), method, path, body, answer, limit))
}

// UnansweredError is a call without an answer, which may have been carried out.
type UnansweredError struct{ error }

// Unwrap is the reason.
func (e *UnansweredError) Unwrap() error { return e.error }

// Explain describes an error of the client for Go to the user of the command, with its exit code.
func (c *Client) Explain(err error) error {
	e, ok := errors.AsType[*locksidecar.Error](err)
	switch {
	case !ok:
		return err
	case e.Raw != nil:
		return problemOf(e)
	}
	text := errors.New(Printable(e.Detail))
	switch {
	case !c.overURL && len(c.Socket) > config.MaxSocketBytes:
		return exitcode.With(exitcode.Usage, text)
	case errors.Is(err, fs.ErrPermission):
		return exitcode.With(exitcode.Refused, text)
	case e.Code == "unreachable" && c.overURL:
		return exitcode.With(exitcode.Unavailable, text)
	case e.Code == "unreachable":
		return exitcode.With(exitcode.Unavailable, fmt.Errorf("%w; --socket names another one", text))
	case errors.Is(err, locksidecar.ErrUnavailable):
		return &UnansweredError{exitcode.With(exitcode.Unavailable, text)}
	case errors.Is(err, locksidecar.ErrBadAnswer):
		return &UnansweredError{fmt.Errorf("%w; is it a sidecar that listens at %s?", text, c.Socket)}
	}
	return &ProblemError{Code: e.Code, Detail: e.Detail, Reason: e.Reason, cause: e}
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
