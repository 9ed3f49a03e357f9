package proxy

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// breakLock is DELETE /v1/locks/{key}?force=true. It breaks all present grants, or only the one with the
// token, unless the token is 0. The log names the former holders, and the answer says for how long at most
// the lock was held.
func (k *call) breakLock(key string, token int64) *wire.Problem {
	if !k.srv.cfg.AllowForce {
		return wire.Refusef(wire.CodeForbidden, "force=true is not allowed here; the sidecar's LOCKSIDECAR_ALLOW_FORCE=true allows it")
	}
	s, p := k.claimant()
	if p != nil {
		return p
	}
	k.span.setSession(s)
	v, err := k.srv.locks.Get(k.begin(true), s, key, true)
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
	err = k.srv.locks.Break(k.begin(true), v.Lock, token)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
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
	err := k.srv.locks.AskToStop(k.begin(false), key, token, reason)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	k.answer(wire.AppendAsked(k.buffer(), key))
	k.ctx.Response.SetStatusCode(statusAccepted)
	return nil
}

// statusAccepted: the request is stored or in flight.
const statusAccepted = 202
