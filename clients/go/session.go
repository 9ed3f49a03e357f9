package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	// withdrawTimeout limits the answer to a withdrawal.
	withdrawTimeout = 2 * time.Second
	// oweTime is for how long a release that had no answer is repeated if there is no session, whose end would release the lock.
	oweTime = time.Minute
)

// session is an explicit session. It lives as long as its event stream, a connection of its own. Its calls use other connections.
type session struct {
	t       *transport
	about   *Description
	timeout time.Duration
	id      string // empty: calls without a session
	stream  *stream
	// life ends with the session. Calls that wait end with it.
	life   context.Context
	cancel context.CancelCauseFunc
	onEnd  func(*session)

	mu     sync.Mutex
	ended  bool
	grants map[grantID]*grant
	leases map[int64]*lease // by TTL in ms; 0: that of the session
	// The stream may have news of a grant before its answer is read. The news waits for the answers that are due.
	due   int
	early map[grantID][]sessionEvent
}

// sessionEvent is news of a lock.
type sessionEvent struct {
	name   string
	Key    string `json:"key"`
	Token  int64  `json:"token"`
	Reason string `json:"reason"`
}

func describe(ctx context.Context, t *transport, timeout time.Duration) (*Description, error) {
	about := &Description{}
	// Over the connection in reserve, so that it is open before any call waits.
	err := t.do(ctx, call{method: http.MethodGet, path: "/v1", timeout: timeout, reserved: true, repeatable: true}, about)
	return about, err
}

// noSession is for calls without a session.
func noSession(t *transport, about *Description, timeout time.Duration) *session {
	return &session{t: t, about: about, timeout: timeout, life: t.life, grants: map[grantID]*grant{}}
}

// openSession opens a session.
func openSession(ctx context.Context, t *transport, c *Config, onEnd func(*session)) (*session, error) {
	about, err := describe(ctx, t, c.Timeout)
	if err != nil {
		return nil, err
	}
	s := &session{
		t: t, about: about, timeout: c.Timeout, onEnd: onEnd,
		grants: map[grantID]*grant{}, leases: map[int64]*lease{}, early: map[grantID][]sessionEvent{},
	}
	body := struct {
		Name  string `json:"name,omitempty"`
		TTLMS int64  `json:"ttl_ms,omitempty"`
	}{c.Name, toMS(c.TTL)}
	// The stream outlives the call that opens it.
	if s.stream, err = t.open(context.WithoutCancel(ctx), call{method: http.MethodPost, path: "/v1/sessions", body: body, timeout: c.Timeout}); err != nil {
		return nil, err
	}
	late := time.AfterFunc(c.Timeout, s.stream.close)
	name, data, err := s.stream.next()
	if !late.Stop() && err != nil {
		err = t.failure(ctx, call{method: http.MethodPost, path: "/v1/sessions", timeout: c.Timeout}, errTimeout)
	}
	var opened struct {
		Session string `json:"session"`
	}
	if err == nil && (name != "session" || json.Unmarshal(data, &opened) != nil || opened.Session == "") {
		err = &Error{Code: "bad_answer", Detail: "the sidecar at " + t.at.name + " began the session without its id"}
	}
	if err != nil {
		s.stream.close()
		var ours *Error
		if errors.As(err, &ours) {
			return nil, err
		}
		return nil, t.failure(ctx, call{}, err)
	}
	s.id = opened.Session
	s.life, s.cancel = context.WithCancelCause(t.life)
	go s.read()
	return s, nil
}

// read receives the session's events until its end.
func (s *session) read() {
	for {
		name, data, err := s.stream.next()
		if err != nil {
			s.end()
			return
		}
		e := sessionEvent{name: name}
		if (name == "lost" || name == "stop") && json.Unmarshal(data, &e) == nil {
			s.receive(e)
		}
	}
}

func (s *session) receive(e sessionEvent) {
	id := grantID{e.Key, e.Token}
	s.mu.Lock()
	g := s.grants[id]
	if g == nil && s.due > 0 {
		s.early[id] = append(s.early[id], e)
	}
	if g != nil && e.name == "lost" {
		delete(s.grants, id)
	}
	s.mu.Unlock()
	if g != nil {
		g.hear(e)
	}
}

func (g *grant) hear(e sessionEvent) {
	if e.name == "lost" {
		_ = g.lose(e.Reason, "")
	} else {
		g.askToStop(Stopping{Reason: e.Reason})
	}
}

// end notes that the session is over: its locks are lost. It closes the stream, because the sidecar may not know. Then it would go on to
// hold the locks.
func (s *session) end() {
	s.forget("disconnected", sessionEnded())
	if s.stream != nil {
		s.stream.close()
	}
}

func (s *session) forget(reason string, cause *Error) {
	s.mu.Lock()
	if s.ended || s.id == "" {
		s.mu.Unlock()
		return
	}
	s.ended = true
	grants := s.grants
	s.grants = map[grantID]*grant{}
	s.mu.Unlock()
	s.onEnd(s)
	s.cancel(cause)
	for _, g := range grants {
		_ = g.lose(reason, "")
	}
}

func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// close ends the session at the sidecar. When it returns, the locks are free.
func (s *session) close() {
	s.forget("closed", closedError())
	// If the sidecar has gone, so has the session.
	_ = s.t.do(context.Background(), call{method: http.MethodDelete, path: "/v1/sessions/" + s.id, timeout: s.timeout}, nil)
	s.stream.close()
}

func (s *session) do(ctx context.Context, c call, answer any) error {
	c.session = s.id
	if c.timeout == 0 && !c.waits {
		c.timeout = s.timeout
	}
	return s.t.do(ctx, c, answer)
}

// asked identifies an acquire over all its calls.
type asked struct {
	keys []string
	// unanswered: a call had no answer, so it may have got the lock.
	unanswered bool
}

// lockPath is the path of a key, completely percent-encoded.
func lockPath(key, more string) string { return "/v1/locks/" + url.PathEscape(key) + more }

// acquire acquires one key, or with several all of them. The caller makes the locks of the grants.
func (s *session) acquire(ctx context.Context, what *asked, body acquireBody) (grants []wireGrant, held []*grant, err error) {
	if err := lacking(s.about, body.needs()...); err != nil {
		return nil, nil, err
	}
	c := call{method: http.MethodPut, waits: true, until: s.life, repeatable: true, about: subject{key: what.keys[0]}}
	if body.WaitMS >= 0 {
		c.timeout = ms(body.WaitMS) + s.timeout
		if c.timeout < 0 {
			c.timeout = math.MaxInt64
		}
	}
	var one struct {
		wireGrant
		Outcome Outcome         `json:"outcome"`
		Result  json.RawMessage `json:"result"`
	}
	var many struct {
		Locks []wireGrant `json:"locks"`
	}
	var answer any = &one
	c.path, c.body = lockPath(what.keys[0], ""), body
	if len(body.Keys) > 0 {
		c.method, c.path, c.about, answer = http.MethodPost, "/v1/locks", subject{}, &many
	}
	s.mu.Lock()
	s.due++
	s.mu.Unlock()
	defer s.answered()
	sent := time.Now()
	err = s.do(ctx, c, answer)
	if err != nil {
		what.unanswered = what.unanswered || ctx.Err() != nil || hasNoAnswer(err)
		return nil, nil, err
	}
	grants = many.Locks
	if len(body.Keys) == 0 {
		if !one.Granted {
			return nil, nil, &Error{
				Code: "skipped", Status: http.StatusOK, Key: one.Key, Result: one.Result,
				Detail: "the holder has done the work; its result is in Error.Result",
			}
		}
		grants = []wireGrant{one.wireGrant}
	}
	held, err = s.adopt(grants, sent, body.TTLMS)
	return grants, held, err
}

// answered: an acquire has been answered, and its grants are known.
func (s *session) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due--; s.due == 0 {
		clear(s.early)
	}
}

// adopt notes grants, and delivers the news that came before.
func (s *session) adopt(grants []wireGrant, sent time.Time, ttl *int64) ([]*grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make([]*grant, len(grants))
	for i := range grants {
		w := &grants[i]
		known := ms(w.WaitedMS + w.ExpiresInMS)
		id := grantID{w.Key, w.Token}
		if w.Bind == BindTTL {
			held[i] = newGrant(id, nil)
			held[i].expire(sent, known)
			continue
		}
		if s.ended {
			return nil, sessionEnded()
		}
		g := s.grants[id]
		if g == nil {
			g = newGrant(id, s.leaseOf(ttl))
			s.grants[id] = g
		}
		held[i] = g
		g.lease.prove(sent.Add(known))
		for _, e := range s.early[id] {
			if e.name == "lost" {
				delete(s.grants, id)
			}
			g.hear(e) // it has no entry yet, so nothing is called
		}
		delete(s.early, id)
	}
	return held, nil
}

// withdraw releases what an acquire has, or may have. It goes on in the background.
func (s *session) withdraw(what *asked, id string) {
	var done sync.WaitGroup
	for _, key := range what.keys {
		release := func() error {
			path := lockPath(key, "?"+url.Values{"request_id": {id}}.Encode())
			return s.do(context.Background(), call{method: http.MethodDelete, path: path, timeout: withdrawTimeout, about: subject{key: key}}, nil)
		}
		done.Go(func() {
			if err := release(); mayBeDone(err) {
				s.owe(release)
			}
		})
	}
	// The caller may acquire again at once. But its context has ended, so it does not wait for long.
	answered := make(chan struct{})
	go func() { done.Wait(); close(answered) }()
	select {
	case <-answered:
	case <-time.After(withdrawPatience):
	}
}

const withdrawPatience = 250 * time.Millisecond

// owe repeats a release without an answer in the background, until it has one or the session is over. The lock may be held, and nobody may
// have its handle any more.
func (s *session) owe(release func() error) {
	p := patience{limit: oweTime}
	if s.id != "" {
		p.limit = forEver
	}
	go func() {
		for err := error(nil); p.pause(s.life, err) == nil && !s.isOver(); {
			if err = release(); !mayBeDone(err) {
				return
			}
		}
	}()
}

// amend is PATCH: it checks, and changes what the body names.
func (s *session) amend(ctx context.Context, key string, body amendBody, timeout time.Duration) (*wireGrant, error) {
	var needs []string
	if body.TTLMS != nil {
		needs = append(needs, "bind_ttl")
	}
	if body.Data != nil {
		needs = append(needs, "data")
	}
	if body.Mode != "" {
		needs = append(needs, "shared")
	}
	if err := lacking(s.about, needs...); err != nil {
		return nil, err
	}
	answer := &wireGrant{}
	err := s.do(ctx, call{method: http.MethodPatch, path: lockPath(key, ""), body: body, about: subject{key, body.Token}, timeout: timeout, repeatable: true}, answer)
	return answer, err
}

type amendBody struct {
	Token int64           `json:"token"`
	TTLMS *int64          `json:"ttl_ms,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
	Mode  Mode            `json:"mode,omitempty"`
}

func statusOf(w *wireGrant) *Status {
	return &Status{
		Key: w.Key, Token: w.Token, Reentry: w.Reentry, ExpiresIn: ms(w.ExpiresInMS), Mode: w.Mode, Limit: w.Limit,
		Slot: slotOf(w.Slot), Stopping: w.Stopping,
	}
}

// release releases a lock by its token.
func (s *session) release(ctx context.Context, key string, body releaseBody) (*Released, error) {
	var needs []string
	if body.Outcome != "" {
		needs = append(needs, "outcome")
	}
	if body.Reentry != 0 {
		needs = append(needs, "reentrant")
	}
	if err := lacking(s.about, needs...); err != nil {
		return nil, err
	}
	var answer struct {
		Released bool  `json:"released"`
		Reentry  int   `json:"reentry"`
		HeldMS   int64 `json:"held_ms"`
	}
	err := s.do(ctx, call{method: http.MethodPost, path: lockPath(key, "/release"), body: body, about: subject{key, body.Token}}, &answer)
	if err != nil {
		return nil, err
	}
	if answer.Released {
		id := grantID{key, body.Token}
		s.mu.Lock()
		g := s.grants[id]
		delete(s.grants, id)
		s.mu.Unlock()
		if g != nil {
			g.end()
		}
	}
	return &Released{Free: answer.Released, Reentry: answer.Reentry, Held: ms(answer.HeldMS)}, nil
}

// brokeOff reports whether a call failed because its connection or session ended.
func brokeOff(err error) bool {
	return isCode(err, "connection_lost", "session_ended") && !errors.Is(err, ErrClosed)
}
