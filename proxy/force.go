package proxy

import (
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

// breakLock is DELETE /v1/locks/{key}?force=true. It looks at the lock before, to
// say who lost it: in the log, and how long it was held in the answer.
func (k *call) breakLock(key string) *problem {
	if !k.srv.cfg.AllowForce {
		p := forbidden("force=true is not allowed here; the sidecar's LOCKSIDECAR_ALLOW_FORCE=true allows it")
		p.refusal = true
		return p
	}
	s, p := k.claimant()
	if p != nil {
		return p
	}
	k.span.speaksFor(s)
	v, err := k.srv.locks.Get(k.c.watch.begin(true), s, key, true)
	k.c.watch.end()
	if err != nil {
		return k.failed(err)
	}
	began := time.Now()
	k.logger().Warn("a lock is being broken", "key", key, "token", v.Token, "holder", v.Holder.Instance,
		"session", v.Holder.Session, "owner", v.Holder.Owner, "by", k.c.peer)
	err = k.srv.locks.Break(k.c.watch.begin(true), key)
	k.c.watch.end()
	if err != nil {
		return k.failed(err)
	}
	broken := lease.Released{Key: key}
	if v.Held {
		broken.HeldFor = v.Holder.HeldFor + time.Since(began)
	}
	k.span.released(&broken)
	k.answer(appendReleased(k.buffer(), &broken))
	return nil
}

// LogValue shows who is at the other end, as far as the system tells.
func (p peer) LogValue() slog.Value {
	if !p.known {
		return slog.StringValue("unknown")
	}
	return slog.GroupValue(slog.Int64("pid", int64(p.pid)), slog.Int64("uid", int64(p.uid)))
}
