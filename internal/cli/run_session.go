package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"
)

// session is an explicit session of this process. It lives exactly as long as conn,
// which no child process inherits (Go opens everything close-on-exec): so the end
// of this process, however it ends, is the end of the session.
type session struct {
	client *client
	conn   net.Conn
	id     string
	ttl    time.Duration
	// events is closed when the stream has ended.
	events chan sessionEvent
}

// sessionEvent is `lost` or `stop`.
type sessionEvent struct {
	name   string
	Key    string  `json:"key"`
	Token  int64   `json:"token"`
	Reason *string `json:"reason"`
}

type sessionBody struct {
	TTLMS int64  `json:"ttl_ms,omitempty"`
	Name  string `json:"name"`
}

// maxEvents is the most events that wait for their reader: `run` has one lock.
const maxEvents = 64

// openSession opens the event stream and waits for the session's id. ttlMS 0 is the
// sidecar's default.
func openSession(c *client, ttlMS int64, name string) (*session, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, c.explain(err)
	}
	s := &session{client: c, conn: conn, events: make(chan sessionEvent, maxEvents)}
	if err := s.open(sessionBody{TTLMS: ttlMS, Name: name}); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

func (s *session) open(body sessionBody) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encoding the request: %w", err)
	}
	_ = s.conn.SetDeadline(time.Now().Add(answerTimeout))
	_, err = fmt.Fprintf(s.conn, "POST /v1/sessions HTTP/1.1\r\nHost: locksidecar\r\nUser-Agent: locksidecar/%s\r\nContent-Length: %d\r\n\r\n%s",
		s.client.version, len(encoded), encoded)
	if err != nil {
		return s.client.explain(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(s.conn), nil) //nolint:bodyclose // it ends with the connection
	if err != nil {
		return s.client.explain(err)
	}
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
		return newProblem(answer.StatusCode, text)
	}
	lines := bufio.NewReader(answer.Body)
	first, data, err := nextEvent(lines)
	if err != nil {
		return s.client.explain(err)
	}
	var opened struct {
		Session string `json:"session"`
		TTLMS   int64  `json:"ttl_ms"`
	}
	if first != "session" || json.Unmarshal(data, &opened) != nil || opened.Session == "" {
		return fmt.Errorf("the sidecar at %s began the session with %q %.200q", s.client.socket, first, data)
	}
	s.id, s.ttl = opened.Session, time.Duration(opened.TTLMS)*time.Millisecond
	_ = s.conn.SetDeadline(time.Time{})
	go s.read(lines)
	return nil
}

func (s *session) close() { _ = s.conn.Close() }

func (s *session) read(lines *bufio.Reader) {
	defer close(s.events)
	for {
		name, data, err := nextEvent(lines)
		if err != nil {
			return
		}
		e := sessionEvent{name: name}
		if json.Unmarshal(data, &e) == nil {
			s.events <- e
		}
	}
}

// nextEvent reads one server-sent event. Events of a future version are for the
// caller to ignore.
func nextEvent(lines *bufio.Reader) (name string, data []byte, err error) {
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

// call makes a call that joins the session, on a connection of its own. It is safe
// for concurrent use.
func (s *session) call(method, path string, body, answer any, wait, patience time.Duration) error {
	c := newClient(s.client.socket, s.client.version)
	c.session, c.patience = s.id, patience
	return c.call(method, path, body, answer, wait)
}

type sessionAcquireBody struct {
	WaitMS    int64           `json:"wait_ms,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	RequestID string          `json:"request_id"`
}

// heldLock is a lock that the session holds, as far as is known.
type heldLock struct {
	session *session
	key     string
	token   int64
	// until is when the lease ends unless it is renewed.
	until time.Time
}

// lease is the part of the answers to acquire and PATCH that is used here.
type leaseAnswer struct {
	Granted     bool  `json:"granted"`
	Token       int64 `json:"token"`
	ExpiresInMS int64 `json:"expires_in_ms"`
	WaitedMS    int64 `json:"waited_ms"`
}

// acquire waits for waitMS, below zero for ever.
func (s *session) acquire(key string, waitMS int64, data json.RawMessage) (*heldLock, error) {
	var got leaseAnswer
	body := sessionAcquireBody{WaitMS: waitMS, Data: data, RequestID: uuid.NewString()}
	wait := time.Duration(waitMS) * time.Millisecond
	if err := s.call(fasthttp.MethodPut, lockPath(key), body, &got, wait, answerTimeout); err != nil {
		return nil, err
	}
	if !got.Granted || got.Token == 0 {
		return nil, fmt.Errorf("the sidecar at %s answered an acquire with 200, but without a grant", s.client.socket)
	}
	return &heldLock{session: s, key: key, token: got.Token, until: time.Now().Add(expiry(got))}, nil
}

func expiry(a leaseAnswer) time.Duration { return time.Duration(a.ExpiresInMS) * time.Millisecond }

// releasePatience is how long a release may take: the session's end, which follows,
// frees the lock as well.
const releasePatience = 5 * time.Second

func (l *heldLock) release(success bool) error {
	outcome := "failure"
	if success {
		outcome = "success"
	}
	path := fmt.Sprintf("%s?token=%d&outcome=%s", lockPath(l.key), l.token, outcome)
	return l.session.call(fasthttp.MethodDelete, path, nil, nil, 0, releasePatience)
}

// lossOf tells whether an error means that the lock is not held, and why.
func lossOf(err error) (reason string, lost bool) {
	problem, ok := errors.AsType[*problemError](err)
	if !ok {
		return "", false
	}
	switch problem.Code {
	case "lock_lost", "not_holder":
		if problem.Reason != "" {
			return problem.Reason, true
		}
		return problem.Code, true
	case "session_ended":
		return "the session has ended", true
	}
	return "", false
}
