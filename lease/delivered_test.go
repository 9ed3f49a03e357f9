package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// newsOf returns the news of an attempt's grant as another sidecar sends it, with no other members.
func (r *rig) newsOf(b *attempt.Attempt) store.News {
	lock := r.stored(b.Key())
	return store.News{
		Attempt: store.Attempt{ID: b.Ref().ID},
		Answer: store.Answer{
			Outcome: store.Granted, Token: lock.Token, AcquiredAt: lock.Holder.AcquiredAt, ExpiresIn: lock.Holder.ExpiresIn,
		},
	}
}

// waiting starts a call that waits behind another sidecar, and returns its attempt.
func (r *rig) waiting(other *rig, s *holdings.Session, key string, wait time.Duration) (*answer, *attempt.Attempt, int64) {
	g := other.lockTTL(key, time.Hour)
	a := r.wait(s, key, wait)
	synctest.Wait()
	return a, r.m.acquirer.Queue.Waiting()[0], g.Token
}

// A waiter whose grant is pushed does not ask the store. A push with only half of the id is not
// trusted.
func TestPushedGrant(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other, s := r.another(opt), r.eitherSession()
		a, b, token := r.waiting(other, s, "k", types.WaitForever)
		forged := r.newsOf(b)
		copy(forged.ID[8:], uuid.NewString())
		r.m.News(forged)
		if synctest.Wait(); a.isOver() {
			t.Fatal("a push without the full attempt id was trusted")
		}
		r.handOver(other, "k", token)
		checks := r.st.count("Check")
		r.m.News(r.newsOf(b))
		synctest.Wait()
		if g := a.granted(t); g.Token != r.stored("k").Token || r.st.count("Check") != checks {
			t.Errorf("granted %+v after %d checks", g, r.st.count("Check")-checks)
		}
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A push with half of the id is a hint to check.
func TestHalfAnIDIsAHint(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other, s := r.another(opt), r.eitherSession()
		a, b, token := r.waiting(other, s, "k", types.WaitForever)
		time.Sleep(time.Second)
		r.handOver(other, "k", token)
		var half store.AttemptID
		id := b.Ref().ID
		copy(half[:8], id[:8])
		before := time.Now()
		r.m.News(store.News{Attempt: store.Attempt{ID: half}})
		if a.granted(t); time.Since(before) != 0 {
			t.Errorf("granted %s after the hint", time.Since(before))
		}
		s.End(types.EndDropped)
		r.nothingLeft()
	})
}

// A push that is repeated, or comes after the end of its wait, changes nothing.
func TestLatePushes(t *testing.T) {
	for name, before := range map[string]func(*rig, *holdings.Session, *answer, store.News){
		"again": func(r *rig, s *holdings.Session, a *answer, word store.News) {
			r.m.News(word)
			r.release(s, a.granted(r.t))
		},
		"after the session's end": func(_ *rig, s *holdings.Session, _ *answer, _ store.News) { s.End(types.EndDropped) },
		"after the lease's end": func(r *rig, _ *holdings.Session, _ *answer, _ store.News) {
			r.revokeLeases()
			time.Sleep(6 * time.Second) // a renewal finds the loss
		},
		"after the suspension": func(r *rig, _ *holdings.Session, _ *answer, _ store.News) {
			r.clk.stop(time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other, s := r.another(opt), r.eitherSession()
				a, b, token := r.waiting(other, s, "k", types.WaitForever)
				r.handOver(other, "k", token)
				word := r.newsOf(b)
				before(r, s, a, word)
				r.m.News(word)
				synctest.Wait()
				if h := r.m.holdings.Get("k"); h != nil && h.Token == word.Answer.Token {
					t.Errorf("the session holds the grant of the late push: %+v", h)
				}
				s.End(types.EndDropped)
				time.Sleep(time.Minute)
				r.nothingLeft()
			})
		})
	}
}

// A push may overtake the answer of the enqueue, or meet a cancel. The call returns the grant or
// hands it back.
func TestPushMeetsOtherAnswers(t *testing.T) {
	for _, op := range []string{"Enqueue", "Cancel"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other, s := r.another(), r.eitherSession()
				var proceed func()
				if op == "Enqueue" {
					proceed = r.st.holdAnswer(op)
				}
				a, b, token := r.waiting(other, s, "k", 10*time.Second)
				if op == "Cancel" {
					proceed = r.st.holdAnswer(op)
					r.handOver(other, "k", token)
					time.Sleep(11 * time.Second)
				} else {
					r.handOver(other, "k", token)
				}
				r.m.News(r.newsOf(b))
				synctest.Wait()
				proceed()
				if g := a.granted(t); g.Token != r.stored("k").Token {
					t.Errorf("granted %+v", g)
				}
				s.End(types.EndDropped)
				r.nothingLeft()
			})
		})
	}
}
