package attempt

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/keep"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// keepable is what a lock knows of the key that the sidecar may keep when the lock is released: see package keep. As long as the
// store is not told of the lock, it has the grant, under the token Grant.Visible. So each such lock has one of two fates, or none, if it is
// lost or handed on:
//
//   - toldOf: the store is told of the lock, because others want to see it, or its data changes. The lock is then released under its
//     own token, and the key is not kept.
//   - leftUnseen: the lock leaves its session, and the store is told nothing of it any more. A release then names the token of the
//     grant. If the sidecar keeps the key, this release is put off.
//
// With both, a claim could name a token that the store does not have. So the first of Tells and leavesUnseen decides.
//
// grant is nil if the key may not be kept. Then the store may always be told of the lock.
type keepable struct {
	grant *keep.Grant
	fate  atomic.Uint32
}

const (
	undecided = iota
	toldOf
	leftUnseen
)

// Tells must be called before the store is told of a lock, as of its data. It returns false if the lock has left its session, and
// the store must not be told any more.
func (k *keepable) Tells() bool {
	return k.grant == nil || k.fate.CompareAndSwap(undecided, toldOf) || k.fate.Load() == toldOf
}

// leavesUnseen must be called before a release that names the token of the grant. It returns false if the store was told of the lock, or may be.
func (k *keepable) leavesUnseen() bool { return k.fate.CompareAndSwap(undecided, leftUnseen) }

// wasTold reports whether the store was told of the lock, or may be.
func (k *keepable) wasTold() bool { return k.fate.Load() == toldOf }

// keepableOf returns what a lock knows of its key that may be kept, or nil if the key may not be kept.
func keepableOf(h *holdings.Lock) *keepable {
	if m := memberOf(h); m != nil && m.grant != nil {
		return &m.keepable
	}
	return nil
}

// mayBeKept reports whether the attempt is for such a lock as may be kept, and so may be taken, too.
func (b *Attempt) mayBeKept() bool {
	return b.req.Bind == types.BindSession && !b.req.Shared && b.req.MinHold == 0 && !b.req.Skip && b.admission.Key == ""
}

// mayKeep reports whether the store lets this sidecar keep the key of a grant. asked is when the question was sent.
func (b *Attempt) mayKeep(ans *store.Answer, asked time.Time) bool {
	return ans.Keepable && b.aq.keeps != nil && !asked.IsZero() && b.mayBeKept()
}

// keepableMember is newMember for a grant for which mayKeep is true. Nobody waits, so the cohort names no waiters. Calls that are queued
// here later may extend it.
func (b *Attempt) keepableMember(ans *store.Answer, asked, now time.Time) *member {
	m := newMember(ans, now)
	m.grant = keep.NewGrant(b.req.Key, b.Lease(), ans.Token, asked, ans.AcquiredAt, now)
	return m
}

// takenMember returns the member of a lock that an attempt has taken from a grant that the sidecar kept. The attempt was never in the
// store's queue, but the store learns of the lock as of one that was handed on.
func takenMember(g *keep.Grant, id store.AttemptID, now time.Time) *member {
	served := []store.AttemptID{id}
	return &member{
		cohort: &cohort{granted: g.Visible, all: served}, served: served, until: now.Add(CohortTime),
		keepable: keepable{grant: g},
	}
}

// heldKeepable returns the lock of a key if its key may be kept, and the store was not told of it yet.
func (aq *Acquirer) heldKeepable(key string) (*holdings.Lock, *keep.Grant) {
	if h := aq.holdings.Get(key); h != nil {
		if k := keepableOf(h); k != nil && !k.wasTold() {
			return h, k.grant
		}
	}
	return nil, nil
}

// Taken returns the lock of a key if it was taken from what this sidecar kept, and the store was not told of it yet. Otherwise it
// returns nil.
func (aq *Acquirer) Taken(key string) *holdings.Lock {
	if h, _ := aq.heldKeepable(key); h != nil && h.IsServed() {
		return h
	}
	return nil
}

// wasRecalled reports whether another sidecar waits for a lock, as far as a recall has said so.
func (aq *Acquirer) wasRecalled(h *holdings.Lock) bool {
	k := keepableOf(h)
	return k != nil && aq.keeps.Recalled(k.grant)
}

// tellIfRecalled tells the store of a lock that has just come, if its grant was recalled before the lock could be found here.
func (aq *Acquirer) tellIfRecalled(g *keep.Grant, token int64) {
	if !aq.keeps.Recalled(g) {
		return
	}
	if h := aq.holdings.Find(g.Key, token); h != nil {
		aq.later.Spawn(func() { aq.tell(h) })
	}
}

// noteReleased records that the store has confirmed the release of a lock, for the next ask: the token under which the store knew the
// lock.
func (aq *Acquirer) noteReleased(h *holdings.Lock) {
	if aq.keeps == nil || h.IsShare() {
		return
	}
	switch m, k := memberOf(h), keepableOf(h); {
	case m == nil || len(m.served) == 0 || k != nil && k.wasTold():
		aq.keeps.Released(h.Key, h.Token)
	case k != nil:
		aq.keeps.Released(h.Key, k.grant.Visible)
	}
}
