package proxy

import (
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// breakLock is DELETE /v1/locks/{key}?force=true. It breaks the present grant, and only if that has the
// token, unless this is 0. The log says who lost the lock, the answer how long it was held.
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
	if !v.Held || token != 0 && token != v.Token {
		return k.failed(&lease.NotHeldError{Key: key, Token: token})
	}
	began := time.Now()
	k.logger().Warn("a lock is being broken", "key", key, "token", v.Token, "holder", v.Holder.Instance,
		"session", v.Holder.Session, "owner", v.Holder.Owner, "by", k.c.Peer)
	err = k.srv.locks.Break(k.begin(true), v.Lock)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	broken := lease.Released{Key: key, HeldFor: v.Holder.HeldFor + time.Since(began)}
	k.span.released(&broken)
	k.answer(wire.AppendReleased(k.buffer(), &broken))
	return nil
}
