package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// maxAnswer limits the size of an answer: a full page of locks, each with its data, fits.
	maxAnswer = 32 << 20
	// maxSocketPath is the limit of Linux, in bytes.
	maxSocketPath = 107
)

// silence is after which time a stream without any line is over: the sidecar sends a comment every 15 s.
const silence = 45 * time.Second

// transport makes calls. Each has a connection of its own until its answer, so its end ends only this call.
type transport struct {
	at     *endpoint
	agent  string
	tracer Tracer
	pool   *pool
	// reserve is for calls that must get through: releases, for example, end waits.
	reserve *reserve
	// life ends with the client.
	life context.Context
	end  context.CancelCauseFunc
}

func newTransport(at *endpoint, c *Config) *transport {
	t := &transport{at: at, agent: c.UserAgent, tracer: c.Tracer, pool: newPool(at.dialInTurn), reserve: newReserve(at.dial)}
	if t.agent == "" {
		t.agent = "locksidecar-go"
	}
	t.life, t.end = context.WithCancelCause(context.Background())
	return t
}

// close ends all calls.
func (t *transport) close() {
	t.end(closedError())
	t.pool.close()
	t.reserve.close()
}

// call is one call of the API.
type call struct {
	method, path string
	body         any
	session      string // the id of the session that it joins, or empty
	// timeout limits the time for the answer; 0: none.
	timeout time.Duration
	// until ends a waiting call with its session; nil: nothing does.
	until context.Context
	about subject
	fresh bool // the store is asked
	waits bool // it may last, so it does not get the connection in reserve
	// reserved: it uses the connection in reserve.
	reserved bool
	// repeatable: it may be sent again, if a connection that was kept breaks before the answer.
	repeatable bool
}

// errTimeout is the cause of a call that has had no answer in time.
var errTimeout = errors.New("no answer in time")

// do makes a call, and decodes its answer into answer (nil: ignored).
func (t *transport) do(ctx context.Context, c call, answer any) error {
	text, err := t.text(ctx, c)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return &Error{
			Code: "bad_answer", Key: c.about.key, cause: err,
			Detail: fmt.Sprintf("the answer to %s %s cannot be read (%v)", c.method, c.path, err),
		}
	}
	return nil
}

func (t *transport) text(ctx context.Context, c call) ([]byte, error) {
	req, err := t.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	var ends time.Time
	if c.timeout > 0 {
		ends = time.Now().Add(c.timeout)
	}
	var sent sendError
	a, err := t.exchange(ctx, c, req, ends, &sent)
	if err != nil && !c.reserved && !c.waits && isExhausted(err) {
		c.reserved = true // this try has sent nothing
		a, err = t.exchange(ctx, c, req, ends, &sent)
	}
	switch {
	case err != nil && sent.err != nil && isOfDial(err):
		return nil, t.failure(ctx, c, sent.err)
	case err != nil:
		return nil, t.failure(ctx, c, err)
	case len(a.text) > maxAnswer:
		return nil, &Error{Code: "bad_answer", Key: c.about.key, Detail: fmt.Sprintf("the answer to %s %s has more than %d bytes", c.method, c.path, maxAnswer)}
	case a.StatusCode/100 != 2:
		return nil, problemOf(a.StatusCode, a.text, retryAfter(a.Response), c.about)
	}
	return a.text, nil
}

// sendError is why a try has failed that the sidecar may have carried out. If there is no connection for the next one, the outcome is unknown.
type sendError struct{ err error }

func (s *sendError) note(k *conn, err error) {
	if k.began {
		s.err = err
	}
}

// prepare makes the request of a call.
func (t *transport) prepare(ctx context.Context, c call) (*request, error) {
	if err := ctx.Err(); err != nil {
		return nil, t.failure(ctx, c, err)
	}
	if t.at.wrong != nil {
		return nil, t.at.wrong
	}
	if n := len(t.at.socket); n > maxSocketPath {
		return nil, &Error{Code: "unreachable", Key: c.about.key, Detail: fmt.Sprintf("the socket's path %s has %d bytes; allowed: up to %d, as the system limits it", t.at.socket, n, maxSocketPath)}
	}
	r := &request{}
	if c.body != nil {
		var err error
		if r.body, err = json.Marshal(c.body); err != nil {
			return nil, invalid("the data or the result cannot be made into JSON: %v", err)
		}
	}
	var err error
	if r.Request, err = http.NewRequestWithContext(ctx, c.method, "http://"+t.at.authority()+c.path, http.NoBody); err != nil {
		return nil, t.failure(ctx, c, err)
	}
	r.Header.Set("User-Agent", t.agent)
	if t.at.token != nil {
		token, err := t.at.token.header()
		if err != nil {
			return nil, t.failure(ctx, c, err)
		}
		r.Header.Set("Authorization", token)
	}
	if c.session != "" {
		r.Header.Set("Lock-Session", c.session)
	}
	if c.fresh {
		r.Header.Set("Cache-Control", "no-cache")
	}
	t.inject(ctx, r.Header)
	return r, nil
}

// exchange sends a request on a connection of its own, and reads the answer. A kept connection may break because the sidecar has closed it before the call. Then
// a call that may be repeated, or of which nothing was sent, gets another one.
func (t *transport) exchange(ctx context.Context, c call, r *request, ends time.Time, sent *sendError) (*answer, error) {
	if c.reserved {
		limited, stop := t.limited(ctx, c, ends)
		defer stop()
		return t.reserve.exchange(limited, r, ends, c.repeatable, sent)
	}
	for {
		k := t.pool.take()
		reused := k != nil
		if !reused {
			var err error
			if k, err = t.dial(ctx, c, ends); err != nil {
				return nil, err
			}
		}
		stop := k.limitTo(ctx, c.until, ends)
		a, err := k.exchange(r)
		if stop() && err == nil && !a.Close {
			t.pool.give(k)
		} else {
			t.pool.drop(k)
		}
		if err == nil || !reused || !k.maySendAgain(c.repeatable, err) || t.causeOf(ctx, c, err) != nil {
			return a, err
		}
		sent.note(k, err)
	}
}

// dial makes a connection, which is one of the pool.
func (t *transport) dial(ctx context.Context, c call, ends time.Time) (*conn, error) {
	ctx, stop := t.limited(ctx, c, ends)
	defer stop()
	k, err := t.pool.dial(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return k, err
}

// limited adds the limits of a call to the caller's context: a time (zero: none), the end of its session, and that of the client.
func (t *transport) limited(caller context.Context, c call, ends time.Time) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(caller)
	stops := []func() bool{context.AfterFunc(t.life, func() { cancel(context.Cause(t.life)) })}
	if c.until != nil {
		stops = append(stops, context.AfterFunc(c.until, func() { cancel(context.Cause(c.until)) }))
	}
	if !ends.IsZero() {
		timer := time.AfterFunc(time.Until(ends), func() { cancel(errTimeout) })
		stops = append(stops, timer.Stop)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// causeOf is why a call ended before its answer: its caller, its client, its session or its time has ended. nil: none of these.
func (t *transport) causeOf(ctx context.Context, c call, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case t.life.Err() != nil:
		return context.Cause(t.life)
	case c.until != nil && c.until.Err() != nil:
		return context.Cause(c.until)
	case errors.Is(err, errTimeout):
		return errTimeout
	}
	return nil
}

// failure is the error of a call without a complete answer.
func (t *transport) failure(ctx context.Context, c call, err error) error {
	cause := t.causeOf(ctx, c, err)
	var ours *Error
	switch {
	case cause == nil && errors.As(err, &ours): // it was not sent
		return ours
	case cause == nil:
	case errors.Is(cause, errTimeout):
		return &Error{
			Code: "timeout", Key: c.about.key, cause: err,
			Detail: fmt.Sprintf("the sidecar at %s does not answer in time: no answer to %s %s within %s; is it overloaded, or suspended?", t.at.name, c.method, c.path, c.timeout),
		}
	case errors.As(cause, &ours) && ours.Is(ErrSessionEnded):
		return ours
	case errors.Is(cause, ctx.Err()):
		return fmt.Errorf("locksidecar: %s %s: %w", c.method, c.path, cause)
	default: // the context of a lock that is lost, for example
		return fmt.Errorf("locksidecar: %s %s: %w: %w", c.method, c.path, ctx.Err(), cause)
	}
	if isOfDial(err) {
		return &Error{Code: "unreachable", Key: c.about.key, Detail: t.whatToCheck(err), cause: err}
	}
	if text := err.Error(); strings.Contains(text, "malformed HTTP") {
		return &Error{Code: "bad_answer", Key: c.about.key, cause: err, Detail: fmt.Sprintf("what listens at %s does not speak HTTP: %v", t.at.name, err)}
	}
	return &Error{
		Code: "connection_lost", Key: c.about.key, cause: err,
		Detail: fmt.Sprintf("the sidecar at %s closed the connection before it answered (%v)", t.at.name, err),
	}
}

// whatToCheck says why there is no connection, and what to look at.
func (t *transport) whatToCheck(err error) string {
	const names = "LOCKSIDECAR_SOCKET is the same for it and for this process"
	info, statErr := os.Stat(t.at.socket)
	switch {
	case t.at.socket == "" && !isExhausted(err):
		return t.at.whatToCheck(err)
	case isExhausted(err):
		return fmt.Sprintf("there is no file descriptor left for a connection to the sidecar at %s: %s, and each call that waits takes one; raise the limit, or let fewer calls wait at a time", t.at.name, descriptorLimit())
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Sprintf("%s is not a socket; check LOCKSIDECAR_SOCKET", t.at.name)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("no sidecar listens at %s: there is no such file; check that the sidecar runs (`locksidecar serve`), and that %s", t.at.name, names)
	case isRefused(err):
		return fmt.Sprintf("no sidecar listens at %s; check whether it has ended, or is just starting again (its log says why)", t.at.name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("you may not use the socket %s: %v; its mode is LOCKSIDECAR_SOCKET_MODE of the sidecar, and this process runs as uid %d", t.at.name, err, os.Getuid())
	}
	return fmt.Sprintf("no connection to the sidecar at %s: %v", t.at.name, err)
}

// isOfDial reports whether a call has failed because there is no connection.
func isOfDial(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

func isExhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, errWSAExhausted)
}

func isRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errWSAConnRefused)
}

func isCode(err error, codes ...string) bool {
	var e *Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code)
}

func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// stream is an answer of server-sent events.
type stream struct {
	lines *eventReader
	// life ends with the stream, and its cause is why.
	life context.Context
	// heard is when the last byte came.
	heard atomic.Int64
	close func() // may be called twice
	// began is the base of heard, with a monotonic reading.
	began time.Time
}

// open makes a call whose answer is a stream, which lives until ctx ends, or close. Its connection is a new one, because a kept one may be closed.
func (t *transport) open(ctx context.Context, c call) (*stream, error) {
	r, err := t.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	ends := time.Now().Add(c.timeout)
	k, err := t.dial(ctx, c, ends)
	if err != nil {
		return nil, t.failure(ctx, c, err)
	}
	life, stop := t.limited(ctx, c, time.Time{})
	life, cancel := context.WithCancelCause(life)
	context.AfterFunc(life, func() { t.pool.drop(k) })
	s := &stream{began: time.Now(), life: life, close: sync.OnceFunc(func() { cancel(nil); stop() })}
	_ = k.SetDeadline(ends)
	resp, err := k.begin(r) //nolint:bodyclose // a close would read the stream to its end; the end of the connection ends it
	if err != nil {
		err = t.failure(ctx, c, err)
		s.close()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		s.close()
		return nil, problemOf(resp.StatusCode, text, retryAfter(resp), c.about)
	}
	k.endless()
	s.lines = newEventReader(heardReader{resp.Body, s})
	s.watchSilence(life, cancel)
	return s, nil
}

// next returns the next event. The stream is over after an error.
func (s *stream) next() (name string, data []byte, err error) {
	name, data, err = s.lines.next()
	if cause := context.Cause(s.life); err != nil && cause != nil {
		err = cause
	}
	return name, data, err
}

// watchSilence ends the stream if it says nothing for too long. This process may itself have been stopped, with lines to read.
func (s *stream) watchSilence(ctx context.Context, cancel context.CancelCauseFunc) {
	const lastLook = time.Second
	var timer *time.Timer
	late := false
	var mu sync.Mutex
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(silence, func() {
		mu.Lock()
		defer mu.Unlock()
		quiet := time.Since(s.began) - time.Duration(s.heard.Load())
		switch {
		case ctx.Err() != nil:
		case quiet < silence:
			late = false
			timer.Reset(silence - quiet)
		case !late:
			late = true
			timer.Reset(lastLook)
		default:
			cancel(errTimeout)
		}
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
}

// heardReader notes when something has come.
type heardReader struct {
	io.Reader

	of *stream
}

func (r heardReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.of.heard.Store(int64(time.Since(r.of.began)))
	}
	return n, err
}
