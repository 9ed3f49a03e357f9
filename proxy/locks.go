package proxy

import (
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// acquire is PUT /v1/locks/{key}.
func (k *call) acquire(key string) *wire.Problem {
	k.startSpan(spanAcquire, routeKey, key)

	// The whole request is read before a session is opened for it, because a bad one must not have an effect.
	r, p := wire.ParseAcquire(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	r.Key = key

	// A lock ends with its session. That of an explicit session or with bind:ttl outlives the connection.
	s, outlives, p := k.sessionToAcquire(&r)
	if p != nil {
		return p
	}
	k.span.setAcquire(&r, s, k.srv.cfg.TTL)

	// From beginCancelable to EndCall the connection is watched: if it closes, the call ends, however long it would wait.
	g, err := k.srv.locks.Acquire(k.beginCancelable(), s, r)
	gone := k.c.EndCall()

	// With on_success:skip, a wait ends without a grant when the holder has done the work.
	if skipped, ok := errors.AsType[*lease.SkippedError](err); ok {
		k.span.setResult(metrics.Skipped)
		k.answer(wire.AppendSkipped(k.buffer(), skipped))
		return nil
	}
	if err != nil {
		return k.failed(err).Unconfirmed(wire.AcquireUnconfirmed)
	}

	// A grant that outlives the connection must not be left behind by a client that does not know it.
	if p := k.granted(s, []lease.Grant{g}, gone, outlives, r.Traceparent); p != nil {
		return p
	}
	rely(s, &g)
	k.answerGrants(wire.AppendGrant(k.buffer(), &g))
	return nil
}

// acquireAll is POST /v1/locks. Its steps are those of acquire.
func (k *call) acquireAll() *wire.Problem {
	k.startSpan(spanAcquire, routeLocks, "")
	keys, r, p := wire.ParseAcquireAll(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	k.span.setKeys(keys)
	s, outlives, p := k.sessionToAcquire(&r)
	if p != nil {
		return p
	}
	k.span.setAcquire(&r, s, k.srv.cfg.TTL)
	all, err := k.srv.locks.AcquireAll(k.beginCancelable(), s, keys, r)
	gone := k.c.EndCall()
	if err != nil {
		return k.failed(err).Unconfirmed(wire.AcquireUnconfirmed).WithKey(err)
	}
	if p := k.granted(s, all, gone, outlives, r.Traceparent); p != nil {
		return p
	}
	for i := range all {
		rely(s, &all[i])
	}
	k.answerGrants(wire.AppendGrants(k.buffer(), all))
	return nil
}

// sessionToAcquire completes the request with its headers, and returns the session that will have the lock: the one that
// the call names, none with bind:ttl, otherwise the connection's own. outlives: a grant may outlive the connection.
func (k *call) sessionToAcquire(r *lease.Request) (s *lease.Session, outlives bool, p *wire.Problem) {
	r.NoCache, r.Traceparent = k.noCache, k.traceparent()
	if p = k.memoryLow(); p != nil {
		return nil, false, p
	}
	if s, p = k.namedSession(); p != nil {
		return nil, false, p
	}
	ttl := k.srv.cfg.TTL
	if s != nil {
		ttl = s.TTL()
	}
	if p = wire.CheckMinHold(r, ttl); p != nil {
		return nil, false, p
	}
	if s != nil || r.Bind == lease.BindTTL {
		return s, true, nil
	}
	s, p = k.connectionSession()
	return s, false, p
}

// connectionSession returns the connection's own session, and opens it for the first acquire.
func (k *call) connectionSession() (*lease.Session, *wire.Problem) {
	if k.closes {
		return nil, wire.Invalid("the connection ends with this answer (HTTP/1.0 or Connection: close), and the lock " +
			"with it; keep the connection open, name a session in Lock-Session, or ask for \"bind\":\"ttl\"")
	}
	if k.c.session == nil {
		s, err := k.srv.locks.OpenSession(lease.SessionOptions{Reach: k.c.Reach})
		if err != nil {
			return nil, k.failed(err)
		}
		k.c.session = s
	}
	return k.c.session, nil
}

// rely limits what the answer promises. The lock of a session ends with its connection, which may vanish before the lease ends.
func rely(s *lease.Session, g *lease.Grant) {
	if g.Bind != lease.BindTTL {
		g.ExpiresIn = s.Within(g.ExpiresIn)
	}
}

// granted remembers the grants until their answer is written, or hands them back if the client has left.
func (k *call) granted(s *lease.Session, all []lease.Grant, gone, outlives bool, traceparent string) *wire.Problem {
	k.span.granted(all)
	gone = gone || outlives && k.c.HasLeft()
	for i := range all {
		switch {
		case !outlives: // session and lock end with the connection
		case gone:
			k.srv.locks.HandBack(s, all[i])
		default:
			k.c.trackDelivery(s, all[i], traceparent)
		}
	}
	if gone {
		return k.failed(lease.ErrCallerLeft)
	}
	return nil
}

// release is DELETE /v1/locks/{key}. It is carried out even if the client leaves.
func (k *call) release(key string) *wire.Problem {
	k.startSpan(spanRelease, routeKey, key)
	r, force, p := wire.ParseRelease(k.Query, k.ctx.Request.Body())
	k.span.setRelease(&r, force)
	switch {
	case p != nil:
		return p
	case force:
		return k.breakLock(key, r.Token)
	}
	return k.releaseFor(key, r)
}

// releasePosted is POST /v1/locks/{key}/release, because some libraries drop the body of a DELETE.
func (k *call) releasePosted(key string) *wire.Problem {
	k.startSpan(spanRelease, routeRelease, key)
	r, p := wire.ParseReleaseBody(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	k.span.setRelease(&r, false)
	return k.releaseFor(key, r)
}

func (k *call) releaseFor(key string, r lease.ReleaseRequest) *wire.Problem {
	s, p := k.currentSession()
	if p != nil {
		return p
	}
	k.span.setClaim(r.Token, s)
	r.Key, r.Traceparent = key, k.traceparent()
	released, err := k.srv.locks.Release(k.begin(), s, r)
	k.c.EndCall()
	if err != nil {
		return k.failed(err).Unconfirmed(wire.ReleaseUnconfirmed)
	}
	k.span.released(&released)
	k.answer(wire.AppendReleased(k.buffer(), &released))
	return nil
}

// amend is PATCH /v1/locks/{key}. Like a release, it is carried out even if the client leaves.
func (k *call) amend(key string) *wire.Problem {
	k.startSpan(spanAmend, routeKey, key)
	r, p := wire.ParseAmend(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	if len(r.Data) > 0 { // which stays in memory
		if p := k.memoryLow(); p != nil {
			return p
		}
	}
	s, p := k.currentSession()
	if p != nil {
		return p
	}
	k.span.setClaim(r.Token, s)
	r.Key, r.Traceparent = key, k.traceparent()
	g, err := k.srv.locks.Amend(k.begin(), s, r)
	k.c.EndCall()
	if err != nil {
		return k.failed(err).Unconfirmed(wire.AmendUnconfirmed)
	}
	k.span.amended(&g)
	rely(s, &g)
	k.answer(wire.AppendAmended(k.buffer(), &g))
	return nil
}

// get is GET /v1/locks/{key}.
func (k *call) get(key string) *wire.Problem {
	k.startSpan(spanGet, routeKey, key)
	if p := k.noInput(); p != nil {
		return p
	}
	s, p := k.currentSession()
	if p != nil {
		return p
	}
	k.span.setSession(s)
	v, err := k.srv.locks.Get(k.beginCancelable(), s, key, k.noCache)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	k.answer(wire.AppendView(k.buffer(), &v))
	return nil
}

// list is GET /v1/locks.
func (k *call) list() *wire.Problem {
	k.startSpan(spanList, routeLocks, "")
	r, none, p := wire.ParseList(k.Query, k.ctx.Request.Body(), k.srv.cfg.Namespace)
	if p == nil {
		p = k.mayShow(r.Namespace)
	}
	if p != nil {
		return p
	}
	s, p := k.currentSession()
	if p != nil {
		return p
	}
	k.span.setSession(s)
	if none || r.Scope == lease.ScopeSession && s == nil {
		k.answer(wire.AppendPage(k.buffer(), &lease.Page{}))
		return nil
	}
	page, err := k.srv.locks.List(k.beginCancelable(), s, r)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	return k.answerLong(wire.AppendPage(k.buffer(), &page))
}

// mayShow refuses another namespace, which is not empty, where clients see only their own.
func (k *call) mayShow(namespace string) *wire.Problem {
	if namespace != "" && k.srv.cfg.OneNamespace {
		return wire.Refusef(wire.CodeForbidden, "this socket shows its own namespace only: %s", k.srv.cfg.Namespace)
	}
	return nil
}

func (k *call) answerLong(b []byte) *wire.Problem {
	if p := k.roomFor(len(b)); p != nil {
		return p
	}
	k.answer(b)
	return nil
}

// roomFor refuses a long answer if too many others wait for their readers.
func (k *call) roomFor(length int) *wire.Problem {
	if length <= conn.MaxScratch || k.c.ReserveAnswer(length) {
		return nil
	}
	return wire.Refusef(wire.CodeLimit, "too many long answers wait for their readers: together they may have %d MiB", conn.MaxAnswers>>20)
}

// currentSession is the session that the call names, or the connection's own, which may be nil.
func (k *call) currentSession() (*lease.Session, *wire.Problem) {
	named, p := k.namedSession()
	if p != nil || named != nil {
		return named, p
	}
	return k.c.session, nil
}

// waiters is GET /v1/locks/{key}/waiters.
func (k *call) waiters(key string) *wire.Problem {
	k.startSpan(spanWaiters, routeWaiters, key)
	return k.waitersOf(key)
}

// allWaiters is GET /v1/waiters.
func (k *call) allWaiters() *wire.Problem {
	k.startSpan(spanWaiters, routeAllWaiters, "")
	if p := k.only(methodsGet); p != nil {
		return p
	}
	return k.waitersOf("")
}

func (k *call) waitersOf(key string) *wire.Problem {
	r, p := wire.ParseWaiters(k.Query, k.ctx.Request.Body(), key, k.srv.cfg.Namespace)
	if p == nil {
		p = k.mayShow(r.Namespace)
	}
	if p != nil {
		return p
	}
	page, err := k.srv.locks.Waiters(k.beginCancelable(), r)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	return k.answerLong(wire.AppendWaiters(k.buffer(), &page))
}

// breakLock is DELETE /v1/locks/{key}?force=true. It breaks all present grants, or only the one with the
// token, unless the token is 0. The log names the former holders, and the answer says for how long at most
// the lock was held.
func (k *call) breakLock(key string, token int64) *wire.Problem {
	if !k.srv.cfg.AllowForce {
		return wire.Refusef(wire.CodeForbidden, "force=true is not allowed here; the sidecar's LOCKSIDECAR_ALLOW_FORCE=true allows it")
	}
	s, p := k.currentSession()
	if p != nil {
		return p
	}
	k.span.setSession(s)
	v, err := k.srv.locks.Get(k.beginCancelable(), s, key, true)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	if !v.Held || !v.Shared && token != 0 && token != v.Token {
		return k.failed(&lease.NotHeldError{Key: key, Token: token})
	}
	began := time.Now()
	broken := lease.Released{Key: key}
	for _, h := range losers(&v.Lock, token) {
		broken.HeldFor = max(broken.HeldFor, h.HeldFor)
		k.logger().Warn("a lock is being broken", "key", key, "token", h.Token, "holder", h.Instance,
			"session", h.Session, "owner", h.Owner, "by", k.c.Peer)
	}
	err = k.srv.locks.Break(k.beginCancelable(), v.Lock, token)
	k.c.EndCall()
	if err != nil {
		return k.failed(err).Unconfirmed(wire.BreakUnconfirmed)
	}
	broken.HeldFor += time.Since(began)
	k.span.released(&broken)
	k.answer(wire.AppendReleased(k.buffer(), &broken))
	return nil
}

// losers returns the shown holders that lose a broken lock.
func losers(lock *store.Lock, token int64) []store.Share {
	if !lock.Shared {
		return []store.Share{{Token: lock.Token, Holder: lock.Holder}}
	}
	return slices.DeleteFunc(slices.Clone(lock.Holders), func(s store.Share) bool { return token != 0 && s.Token != token })
}

// askToStop is POST /v1/locks/{key}/stop. It is carried out like a release. Its answer does not say whether
// the holder was notified.
func (k *call) askToStop(key string) *wire.Problem {
	k.startSpan(spanStop, routeStop, key)
	token, reason, p := wire.ParseStop(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	k.span.setClaim(token, nil)
	ctx := k.begin()
	if k.span == nil { // the log line of the request names the app's trace
		ctx = tracing.Extract(ctx, k.traceparent(), "")
	}
	err := k.srv.locks.AskToStop(ctx, key, token, reason)
	k.c.EndCall()
	if err != nil {
		return k.failed(err).Unconfirmed(wire.StopUnconfirmed)
	}
	k.answer(wire.AppendAsked(k.buffer(), key))
	k.ctx.Response.SetStatusCode(statusAccepted)
	return nil
}

// statusAccepted: the request is stored or in flight.
const statusAccepted = 202
