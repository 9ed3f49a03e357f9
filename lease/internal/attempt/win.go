package attempt

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// win tells what becomes of a grant. asked is when the question was sent that brought it; zero: it came by news.
func (b *Attempt) win(ans *store.Answer, asked time.Time) {
	// The time of a grant counts from the question, to be safe. News has counted it.
	t := clock.Read(b.aq.clk)
	if !asked.IsZero() {
		ans.ExpiresIn -= t.Now.Sub(asked)
	}
	// An attempt that is over has won before, or was withdrawn.
	b.mu.Lock()
	if b.phase == over {
		b.mu.Unlock()
		b.comesLate()
		return
	}
	// The lock knows who may have the key after it without the store.
	var m *member
	mayKeep := b.mayKeep(ans, asked)
	switch {
	case mayKeep: // the next session here
		m = b.keepableMember(ans, asked, t.Now)
	case b.inQueue.Load() && !b.req.Shared: // the waiters behind it; an attempt that was never in the queue has none
		m = newMember(ans, t.Now)
	}
	// The lock becomes the session's, as an undelivered one: the app sees it when its call returns ([Call.Await]). If nobody wants it
	// any more, or the lease is lost, it is handed back.
	got := b.receiveLocked(ans, asked, t, m)
	b.mu.Unlock()
	b.noteReceived(ans, &got, t.Now)
	switch {
	case !got.won:
		b.handBack(ans.Token)
	case mayKeep:
		b.aq.keeps.Won(m.grant)
		b.aq.tellIfRecalled(m.grant, ans.Token)
	}
	b.end()
}

// received is what became of a grant: see receiveLocked.
type received struct {
	// won: the call has it. handedOver: by a hand-off.
	won, handedOver bool
	// before are the lost locks of the key that this session still had.
	before []*holdings.Lock
}

// receiveLocked makes the grant the call's, if anybody still wants it. The caller holds b.mu, and then calls noteReceived without it.
func (b *Attempt) receiveLocked(ans *store.Answer, asked time.Time, t clock.Tick, m *member) (got received) {
	// It is a hand-off if the attempt was queued, or if it came by news. An answer to a later question than the first says it itself. To the first
	// one it does not count, because a repeated request may find an old grant.
	got.handedOver = b.wasQueued || asked.IsZero() || b.phase != asking && ans.HandedBy != ""
	g := b.grantOf(ans, t.Now)
	if b.leaving&callerLeft == 0 {
		got.before, got.won = b.join(&g, ans, asked, t, m)
	}
	var err error
	if !got.won {
		err = b.whyHandedBack()
	}
	b.grantLocked(g, t.Now, err)
	return got
}

// noteReceived tells others of a grant.
func (b *Attempt) noteReceived(ans *store.Answer, got *received, now time.Time) {
	switch {
	case got.won && got.handedOver:
		b.aq.obs.HandedOver(b.tr, ans.HandedBy, ans.GrantedFor)
	case got.won:
		b.tr.FoundFree()
	}
	for _, h := range got.before {
		h.Lose(types.LostStore) // the store has granted it anew
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.aq.GrantLasts(now, b.lasts())
}

// whyHandedBack returns why a call does not get the grant of its attempt. Another attempt of a repeatable request
// would find the same grant, which is being handed back.
func (b *Attempt) whyHandedBack() error {
	if b.req.Bind == types.BindTTL || clock.Past(b.until, b.aq.clk.Now()) {
		return &store.Error{Op: "acquire", Err: errors.New("the grant was over when the store's answer came")}
	}
	return ErrAttemptLost
}

// join makes the granted lock the session's. It returns false if the session or the lease has ended, because
// such a grant must not be delivered. before are the key's lost locks here. The caller holds b.mu.
func (b *Attempt) join(g *types.Grant, ans *store.Answer, asked time.Time, t clock.Tick, m *member) (before []*holdings.Lock, ok bool) {
	if b.req.Bind == types.BindTTL {
		return nil, g.ExpiresIn > 0
	}
	if b.req.MaxHold > 0 {
		if asked.IsZero() { // the grant came by news
			asked = t.Now
		}
		b.until = asked.Add(b.req.MaxHold)
	}
	b.Lease().Pin() // meanwhile, the attempt's own pin keeps the lease
	w := holdings.Won{
		Req: b.req, Token: ans.Token, Slot: ans.Slot, Lease: b.Lease(), AcquiredAt: ans.AcquiredAt,
		Until: b.until, Span: b.tr.Hold(b.req.Shared),
	}
	if m != nil { // a nil pointer would be a member
		w.Member = m
	}
	if before, ok = b.s.Add(w, b.admission, t); !ok {
		b.Lease().Unpin()
	}
	return before, ok // a loss of the lease at this moment may miss this lock, so deliver checks it
}

func (b *Attempt) grantOf(ans *store.Answer, now time.Time) types.Grant {
	g := types.Grant{
		Key: b.req.Key, Token: ans.Token, Bind: b.req.Bind, ExpiresIn: ans.ExpiresIn,
		Waited: now.Sub(b.began), AcquiredAt: ans.AcquiredAt, Shared: b.req.Shared, Limit: b.req.Limit, Slot: ans.Slot,
	}
	g.Reentry, g.Entry = 1, 1
	if b.req.Bind == types.BindSession {
		g.Session = b.s.Name()
	} else {
		g.ExpiresIn = heartbeat.Reliable(ans.ExpiresIn)
	}
	return g
}
