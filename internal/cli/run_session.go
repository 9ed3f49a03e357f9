package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/client"
)

// session is an explicit session of this process. It lives as long as the connection of its event stream. Children
// do not inherit the connection, because Go opens files close-on-exec. So the session ends with this process.
type session struct {
	client *client.Client
	id     string
	name   string
	ttl    time.Duration
	close  context.CancelFunc // closes the connection
	// events is closed when the stream has ended.
	events chan sessionEvent
}

type sessionEvent struct {
	name   string
	Key    string `json:"key"`
	Token  int64  `json:"token"`
	Reason string `json:"reason"` // empty for null
}

type sessionBody struct {
	TTLMS int64  `json:"ttl_ms,omitempty"` // 0: the sidecar's default
	Name  string `json:"name"`
}

// maxEvents limits the events that wait for their reader. `run` has only one lock.
const maxEvents = 64

// openSession opens the event stream and waits for the session's id.
func openSession(c *client.Client, body sessionBody) (*session, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &session{client: c, name: body.Name, close: func() { cancel(nil) }, events: make(chan sessionEvent, maxEvents)}
	late := time.AfterFunc(client.AnswerTimeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	if err := s.open(ctx, body); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) open(ctx context.Context, body sessionBody) error {
	resp, err := s.client.Send(ctx, http.MethodPost, "/v1/sessions", body) //nolint:bodyclose // it is closed when ctx ends
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, client.MaxAnswer))
		return client.NewProblem(resp.StatusCode, text)
	}
	lines := bufio.NewReader(resp.Body)
	first, data, err := client.NextEvent(lines)
	if err != nil {
		return s.client.Explain(err)
	}
	var opened struct {
		Session string `json:"session"`
		TTLMS   int64  `json:"ttl_ms"`
	}
	if first != "session" || json.Unmarshal(data, &opened) != nil || opened.Session == "" {
		return fmt.Errorf("the sidecar at %s began the session with %q %.200q", s.client.Socket, first, data)
	}
	s.id, s.ttl = opened.Session, time.Duration(opened.TTLMS)*time.Millisecond
	go s.read(resp.Body, lines)
	return nil
}

func (s *session) read(body io.Closer, lines *bufio.Reader) {
	defer close(s.events)
	defer func() { _ = body.Close() }()
	for {
		name, data, err := client.NextEvent(lines)
		if err != nil {
			return
		}
		e := sessionEvent{name: name}
		if json.Unmarshal(data, &e) == nil {
			s.events <- e
		}
	}
}

// call joins the session, on a separate connection. It is safe for concurrent use.
func (s *session) call(method, path string, body, answer any, wait, patience time.Duration) error {
	c := s.client.WithPatience(patience)
	c.Session = s.id
	return c.Call(method, path, body, answer, wait)
}

// heldLock is a lock that the session holds, as far as this process knows.
type heldLock struct {
	session *session
	key     string
	token   int64
	shared  bool // its release has no outcome
	slot    *int // nil without a limit
	// until is when the lease ends without a renewal.
	until time.Time
}

// acquire waits for the time in body.
func (s *session) acquire(key string, body acquireBody) (*heldLock, error) {
	var got grantAnswer
	body.RequestID = uuid.NewString()
	if err := s.call(http.MethodPut, client.LockPath(key), body, &got, body.wait(), client.AnswerTimeout); err != nil {
		return nil, err
	}
	if !got.Granted || got.Token == 0 {
		return nil, fmt.Errorf("the sidecar at %s answered an acquire with 200, but without a grant", s.client.Socket)
	}
	until := time.Now().Add(expiry(got))
	return &heldLock{session: s, key: key, token: got.Token, shared: body.Mode == client.ModeShared, slot: got.Slot, until: until}, nil
}

func expiry(a grantAnswer) time.Duration { return time.Duration(a.ExpiresInMS) * time.Millisecond }

// releasePatience limits the time of a release. The end of the session follows, which also frees the lock.
const releasePatience = 5 * time.Second

func (l *heldLock) release(success bool) error {
	path := fmt.Sprintf("%s?token=%d", client.LockPath(l.key), l.token)
	switch {
	case l.shared:
	case success:
		path += "&outcome=success"
	default:
		path += "&outcome=failure"
	}
	return l.session.call(http.MethodDelete, path, nil, nil, 0, releasePatience)
}

// lossOf reports whether an error means that the lock is not held, and the reason.
func lossOf(err error) (reason string, lost bool) {
	problem, ok := errors.AsType[*client.ProblemError](err)
	if !ok {
		return "", false
	}
	switch problem.Code {
	case "lock_lost", "not_holder":
		return cmp.Or(problem.Reason, problem.Code), true
	case "session_ended":
		return "the session has ended", true
	}
	return "", false
}
