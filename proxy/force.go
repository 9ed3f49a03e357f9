package proxy

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// breakLock is DELETE /v1/locks/{key}?force=true. It breaks the present grants, or only the one that has the
// token, unless this is 0. The log says who lost the lock, the answer how long it was held, at most.
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

// losers are those who lose a lock that is broken, as far as it shows them.
func losers(lock *store.Lock, token int64) []store.Share {
	if !lock.Shared {
		return []store.Share{{Token: lock.Token, Holder: lock.Holder}}
	}
	return slices.DeleteFunc(slices.Clone(lock.Holders), func(s store.Share) bool { return token != 0 && s.Token != token })
}
