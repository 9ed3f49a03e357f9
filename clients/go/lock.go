package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Lock is a held lock, until its release or loss. It is safe for concurrent use.
type Lock struct {
	session   *session
	grant     *grant
	key       string
	token     int64
	wire      wireGrant
	entry     string // the request of this entry of a reentrant lock
	owner     string
	reentrant bool
	onLost    func(error)
	onStop    func(Stopping)

	ctx    context.Context
	cancel context.CancelCauseFunc
	lostCh chan struct{}

	// releasing is held during a release.
	releasing sync.Mutex
	// owed is a release that had no answer, and is repeated in the background; nil: none. Another one repeats it, too.
	owed *releaseBody

	mu       sync.Mutex
	released *Released // nil before the release
	mode     Mode
	limit    int
	slot     int
}

func newLock(ctx context.Context, s *session, g *grant, w *wireGrant, o *options) *Lock {
	if w.Bind == BindTTL {
		s = noSession(s.t, s.about, s.timeout) // it outlives the session
	}
	l := &Lock{
		session: s, grant: g, key: w.Key, token: w.Token, wire: *w, owner: o.body.Owner, reentrant: o.body.Reentrant,
		onLost: o.onLost, onStop: o.onStop, mode: w.Mode, limit: w.Limit, slot: slotOf(w.Slot), lostCh: make(chan struct{}),
	}
	if l.reentrant {
		l.entry = o.body.RequestID
	}
	l.ctx, l.cancel = context.WithCancelCause(with(context.WithoutCancel(ctx), l))
	g.enter(l)
	return l
}

// lose is called once.
func (l *Lock) lose(lost *Error) {
	close(l.lostCh)
	l.cancel(lost)
	if l.onLost != nil {
		go l.onLost(lost)
	}
}

// Key is the lock's key.
func (l *Lock) Key() string { return l.key }

// Token is the fencing token. The tokens of a key strictly grow. Pass it to what the lock protects, which should refuse a smaller
// one than it has seen.
func (l *Lock) Token() int64 { return l.token }

// Context has the values of the context of the acquire, but not its end. It ends when the lock is lost, with [ErrLockLost] as its
// cause, or released. Acquires with this context are known as calls of the holder: see [Reentrant].
func (l *Lock) Context() context.Context { return l.ctx }

// Lost is closed when the lock is lost. A release is no loss.
func (l *Lock) Lost() <-chan struct{} { return l.lostCh }

// Err is the loss, an *Error of ErrLockLost, or nil.
func (l *Lock) Err() error {
	if lost := l.loss(); lost != nil {
		return lost
	}
	return nil
}

func (l *Lock) loss() *Error {
	select {
	case <-l.lostCh:
		return l.grant.loss()
	default:
		return nil
	}
}

// Stopping is closed when somebody asks the holder to finish and to release the lock. A lock of [BindToTTL] learns it by Check.
func (l *Lock) Stopping() <-chan struct{} { return l.grant.stopped }

// StopRequest is the last request to stop, or nil.
func (l *Lock) StopRequest() *Stopping {
	l.grant.mu.Lock()
	defer l.grant.mu.Unlock()
	return l.grant.stopping
}

// Mode is how the lock is held.
func (l *Lock) Mode() Mode { mode, _ := l.sharing(); return mode }

// Limit is the most shared holders at a time; 0 without.
func (l *Lock) Limit() int { _, most := l.sharing(); return most }

func (l *Lock) sharing() (Mode, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.limit
}

// Slot is a number from 0 to the limit - 1 that no other holder has; -1 without a limit.
func (l *Lock) Slot() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slot
}

// Session is the public name of the session; empty for a lock of [BindToTTL].
func (l *Lock) Session() string { return l.wire.Session }

// Bind is what ends the lock without a release.
func (l *Lock) Bind() Bind { return l.wire.Bind }

// Reentry is the number of this entry of its owner.
func (l *Lock) Reentry() int { return l.wire.Reentry }

// Waited is how long the acquire waited in the queue.
func (l *Lock) Waited() time.Duration { return ms(l.wire.WaitedMS) }

// ExpiresIn is for how long an app could rely on the grant without news from the sidecar. Check has the present value.
func (l *Lock) ExpiresIn() time.Duration { return ms(l.wire.ExpiresInMS) }

// AcquiredAt is by the clock of the store, and informative.
func (l *Lock) AcquiredAt() time.Time { return l.wire.AcquiredAt }

// Check asks whether the lock is held. The error is ErrLockLost, or after a release ErrNotHolder.
func (l *Lock) Check(ctx context.Context) (*Status, error) { return l.amend(ctx, amendBody{}) }

// Update replaces the lock's data, which others see. It is as Check in all else.
func (l *Lock) Update(ctx context.Context, data any) (*Status, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, invalid("data: it cannot be made into JSON: %v", err)
	}
	return l.amend(ctx, amendBody{Data: text})
}

// Extend sets the remaining time of a lock of [BindToTTL], from now. It is refused for the lock of a session, which the sidecar renews.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) (*Status, error) {
	n := toMS(ttl)
	return l.amend(ctx, amendBody{TTLMS: &n})
}

// Downgrade makes an exclusive lock shared, under the same token. Shared calls that wait are let in. There is no way back, because two
// holders would wait for each other.
func (l *Lock) Downgrade(ctx context.Context) (*Status, error) {
	status, err := l.amend(ctx, amendBody{Mode: ModeShared})
	if err == nil {
		l.mu.Lock()
		l.mode, l.limit, l.slot = status.Mode, status.Limit, status.Slot
		l.mu.Unlock()
	}
	return status, err
}

func (l *Lock) amend(ctx context.Context, body amendBody) (*Status, error) {
	// For a lock without a session the store decides, not the clock here.
	if lost := l.loss(); lost != nil && l.Bind() == BindSession {
		return nil, lost
	}
	body.Token = l.token
	sent := time.Now()
	answer, err := l.session.amend(ctx, l.key, body, 0)
	if err != nil {
		return nil, l.note(err)
	}
	status := statusOf(answer)
	if l.Bind() == BindTTL {
		l.grant.expire(sent, status.ExpiresIn)
	}
	l.grant.mu.Lock()
	l.grant.note(status.Stopping)
	l.grant.mu.Unlock()
	return status, nil
}

// note takes over what the error of a call says about the lock.
func (l *Lock) note(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Is(ErrLockLost):
		l.session.drop(l.grant)
		return l.grant.lose(e.Reason, "")
	case e.Is(ErrSessionEnded) && l.Bind() == BindSession:
		l.session.end()
		if lost := l.loss(); lost != nil {
			return lost
		}
	}
	return err
}

// Release releases this entry of the lock; the last entry frees it. It has no context, because it must get through: it takes at most
// [Config.Timeout], and if the sidecar does not answer, it returns the error and goes on in the background until there is an answer or the session is
// over. A second call returns what became of it, nil for success. If the lock was lost, the error is ErrLockLost.
func (l *Lock) Release(opts ...ReleaseOption) error {
	body, err := releaseOf(l.token, l.entry, opts)
	if err != nil {
		return err
	}
	l.releasing.Lock()
	defer l.releasing.Unlock()
	if _, done := l.Released(); done {
		return nil
	}
	if lost := l.loss(); lost != nil && l.Bind() == BindSession {
		return lost
	}
	span := Span{Name: "lock.release", Keys: []string{l.key}, Token: l.token}
	// The context has the values of the acquire's: the span's parent.
	return l.session.t.traced(context.WithoutCancel(l.ctx), span, func(ctx context.Context) (SpanEnd, error) {
		return SpanEnd{Result: "released", Token: l.token}, l.release(ctx, body)
	})
}

// release makes the call, and repeats it in the background if it had no answer. l.releasing is held.
func (l *Lock) release(ctx context.Context, body releaseBody) error {
	if l.owed != nil {
		body = *l.owed
	}
	answer, err := l.session.release(ctx, l.key, body)
	if err == nil {
		l.over(answer)
		return nil
	}
	var e *Error
	if l.owed != nil && errors.As(err, &e) && e.Is(ErrNotHolder) && l.isDone(e) {
		l.over(&Released{Free: e.Reentry == 0, Reentry: e.Reentry})
		return nil
	}
	if mayBeDone(err) && l.owed == nil {
		l.owed = &body
		l.session.owe(func() error {
			answer, err := l.session.release(ctx, l.key, body)
			if err == nil {
				l.over(answer)
				return nil
			}
			if mayBeDone(err) {
				return err
			}
			var e *Error
			if errors.As(err, &e) && e.Is(ErrNotHolder) && l.isDone(e) {
				l.over(&Released{Free: e.Reentry == 0, Reentry: e.Reentry})
			} else {
				_ = l.note(err)
			}
			return nil
		})
	}
	return l.note(err)
}

// isDone reports whether the refusal of a repeated release means that an earlier one was carried out.
func (l *Lock) isDone(e *Error) bool {
	// The store may have forgotten the end of a lock without a session. Nobody else ends it before its time.
	return e.Reason == "released" || l.Bind() == BindTTL && e.Reason == "unknown_token" && l.loss() == nil
}

// over notes that this entry was released.
func (l *Lock) over(answer *Released) {
	l.mu.Lock()
	if l.released == nil {
		l.released = answer
	}
	l.mu.Unlock()
	l.grant.leave(l)
	if answer.Free {
		l.grant.end()
		l.session.drop(l.grant)
	}
	l.cancel(nil)
}

// Released is the answer to the release, if there was one.
func (l *Lock) Released() (Released, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released == nil {
		return Released{}, false
	}
	return *l.released, true
}

// isHeld reports whether the lock is held, as far as is known here.
func (l *Lock) isHeld() bool {
	_, over := l.Released()
	return !over && l.loss() == nil
}

// Locks are several locks, in the order in which their keys were named.
type Locks []*Lock

// Get is the lock of a key, or nil.
func (ls Locks) Get(key string) *Lock {
	for _, l := range ls {
		if l.key == key {
			return l
		}
	}
	return nil
}

// Release releases all of them, and joins the errors.
func (ls Locks) Release(opts ...ReleaseOption) error {
	if len(ls) == 1 {
		return ls[0].Release(opts...)
	}
	errs := make([]error, len(ls))
	var all sync.WaitGroup
	for i, l := range ls {
		all.Go(func() { errs[i] = l.Release(opts...) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Context has the values of ctx, and the locks as those of its caller. It ends with ctx, and when one of them is lost, with ErrLockLost as its cause.
// The returned function frees what the context needs.
func (ls Locks) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	for _, l := range ls {
		ctx = with(ctx, l) //nolint:fatcontext // one for each lock
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stops := make([]func() bool, len(ls))
	for i, l := range ls {
		stops[i] = context.AfterFunc(l.ctx, func() {
			if lost := l.loss(); lost != nil {
				cancel(lost)
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}
