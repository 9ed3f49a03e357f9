// Proves: A3, trap failover

package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// rotation is the time until a lease from before a failover is closed, if the store answers. It
// consists of a renewal, a pause, and two more renewals, because a lease is closed when its renewal
// is due.
func (r *rig) rotation() time.Duration { return 4 * r.m.cfg.RenewInterval }

// orphan is a lock, or a queue position, that a failover brought back under a lease.
func (r *rig) orphan(key string, id store.AttemptID) {
	r.t.Helper()
	ask := store.Ask{Attempt: store.Attempt{Key: key, ID: id}, Lease: r.lease()}
	_, err := r.st.Store.Enqueue(context.Background(), []store.Ask{ask})
	r.must(err)
}

// A failover brings back a released lock and a cancelled queue position. Both end in bounded time,
// although another lock under the same lease stays held and is not affected.
func TestOrphansEndInBoundedTime(t *testing.T) {
	for name, id := range map[string]store.AttemptID{"random": uuid.New(), "of a request": uuid.NewSHA1(uuid.New(), nil)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s, o := r.eitherSession(), other.eitherSession()
				mine, theirs := r.lock(s, "mine"), other.lock(o, "line")
				old := r.lease()
				r.orphan("back", id)
				r.orphan("line", uuid.New())
				r.st.failover()
				back := other.wait(o, "back", types.WaitForever)
				time.Sleep(r.rotation())
				if !back.isOver() {
					t.Fatal("an orphan still holds its key")
				}
				other.release(o, back.granted(t))
				other.release(o, theirs)
				if r.stored("line").Held {
					t.Error("an orphan of the queue got the key")
				}
				r.must(r.amend(s, mine))
				r.isRotated(old)
				if l := r.stored("mine"); l.Token != mine.Token || l.Holder.Lease != r.lease() || len(r.losses()) > 0 {
					t.Errorf("lost %+v, and the store has %+v", r.losses(), l)
				}
				r.release(s, mine)
				r.nothingLeft()
			})
		})
	}
}

// A failover brings back a queue position, which gets the key before its lease is closed. Then the
// grant is the orphan.
func TestAnOrphanThatGetsTheKeyEndsToo(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		r.lock(s, "mine")
		theirs, old := other.lock(o, "line"), r.lease()
		r.orphan("line", uuid.New())
		r.st.failover()
		time.Sleep(r.m.cfg.RenewInterval + time.Second)
		other.release(o, theirs)
		if !r.stored("line").Held {
			t.Fatal("the position was lost too early")
		}
		time.Sleep(r.rotation())
		if r.stored("line").Held {
			t.Error("an orphan of the queue got the key")
		}
		r.isRotated(old)
	})
}

// A session's waiter and a bind:ttl waiter keep their positions.
func TestWaitsKeepTheirPositions(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.explicitSession()
		theirs := other.lock(o, "k")
		first := r.wait(s, "k", types.WaitForever)
		second := r.ask(context.Background(), nil, types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Minute, Wait: WaitForever})
		synctest.Wait()
		old := r.lease()
		r.st.failover()
		time.Sleep(r.rotation() + r.m.cfg.RenewInterval)
		r.isRotated(old)
		last := other.wait(o, "k", types.WaitForever)
		other.release(o, theirs)
		r.release(s, first.granted(t))
		g := second.granted(t)
		if last.isOver() {
			t.Fatal("a waiter was overtaken")
		}
		_, err := r.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", Token: g.Token})
		r.must(err)
		other.release(o, last.granted(t))
		r.nothingLeft()
	})
}

// The answer to an acquire is as late as possible. The lease of its grant is kept until the sidecar
// knows the grant.
func TestAnAnswerOnItsWayKeepsItsLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.lock(s, "first") // opens the lease
		old := r.lease()
		time.Sleep(r.m.cfg.RenewInterval - time.Second)
		r.st.set("Acquire", fault{times: 1, after: r.m.cfg.StoreTimeout - time.Millisecond})
		asked := r.ask(context.Background(), s, types.Request{Key: "k"})
		r.st.failover()
		got := asked.granted(t)
		time.Sleep(r.rotation() + r.m.cfg.RenewInterval)
		r.must(r.amend(s, got))
		if l := r.stored("k"); !l.Held || l.Token != got.Token {
			t.Errorf("held in the sidecar, but the store has %+v", l)
		}
		r.isRotated(old)
	})
}

// A busy sidecar rotates its lease too. Its new locks are under the fresh lease.
func TestABusySidecarRotatesToAnEnd(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.lock(s, "first") // opens the lease
		old := r.lease()
		r.st.set("Acquire", fault{after: 4 * time.Second})
		r.st.failover()
		for range 15 {
			r.release(s, r.lock(s, "k"))
		}
		r.st.lift("Acquire")
		r.isRotated(old)
	})
}

// A grant was handed to a waiter, and its news is late. The grant is kept.
func TestAGrantToAWaiterIsKept(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		r.lock(s, "mine")
		theirs, old := other.lock(o, "line"), r.lease()
		waiting := r.wait(s, "line", types.WaitForever)
		r.st.set("Check", fault{refuse: true})
		r.st.mu.Lock()
		r.st.dropNews = true
		r.st.mu.Unlock()
		r.st.failover()
		other.release(o, theirs)
		time.Sleep(time.Minute)
		r.st.lift("Check")
		got := waiting.granted(t)
		synctest.Wait()
		if l := r.stored("line"); !l.Held || l.Token != got.Token {
			t.Errorf("held in the sidecar, but the store has %+v", l)
		}
		r.must(r.amend(s, got))
		time.Sleep(r.rotation())
		r.isRotated(old)
	})
}

// A lock is being released, and the store's answer is late. Its MinHold is kept.
func TestWhatIsBeingReleasedKeepsItsHold(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		r.lock(s, "mine")
		g := r.ask(context.Background(), s, types.Request{Key: "k", MinHold: 10 * time.Minute}).granted(t)
		old := r.lease()
		r.st.set("Release", fault{refuse: true})
		r.st.failover()
		time.Sleep(r.m.cfg.RenewInterval + time.Second)
		if _, err := r.m.Release(context.Background(), s, types.ReleaseRequest{Key: g.Key, Token: g.Token}); err == nil {
			t.Fatal("released")
		}
		time.Sleep(time.Minute)
		r.st.lift("Release")
		time.Sleep(time.Minute)
		if l := r.stored("k"); !l.Held || r.st.count("Withdraw") > 0 {
			t.Errorf("%d withdrawals, and the store has %+v", r.st.count("Withdraw"), l)
		}
		r.isRotated(old)
	})
}

// midMove is a sidecar during the move of a lock and a wait.
type midMove struct {
	*rig
	other   *rig
	s, o    *holdings.Session
	held    types.Grant
	theirs  types.Grant
	waiting *answer
	leave   context.CancelFunc // ends the wait
	old     store.LeaseID
}

// hindered are the ways in which the answer to a move is late or lost.
var hindered = map[string]func(gate chan struct{}) fault{
	"not carried out yet":  func(gate chan struct{}) fault { return fault{gate: gate} },
	"answer in flight":     func(gate chan struct{}) fault { return fault{held: gate} },
	"carried out, unheard": func(chan struct{}) fault { return fault{forget: true} },
	"lost in flight":       func(chan struct{}) fault { return fault{lose: true} },
}

// duringAMove runs a function before the answer to a move, then lets the answer come. At the end,
// nothing may be left of the lock and the wait.
func duringAMove(t *testing.T, happens, after func(r *midMove)) {
	t.Helper()
	for name, hinder := range hindered {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := &midMove{rig: newRig(t, opt)}
				r.other = r.another(opt)
				r.s, r.o = r.eitherSession(), r.other.eitherSession()
				r.held, r.theirs, r.old = r.lock(r.s, "held"), r.other.lock(r.o, "line"), r.lease()
				ctx, leave := context.WithCancel(context.Background())
				defer leave()
				r.leave = leave
				r.waiting = r.ask(ctx, r.s, types.Request{Key: "line", Wait: WaitForever})
				synctest.Wait()
				gate := make(chan struct{})
				r.st.set("Move", hinder(gate))
				r.st.failover()
				for r.st.count("Move") == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(time.Second)
				happens(r)
				r.st.lift("Move")
				close(gate)
				time.Sleep(r.rotation() + r.m.cfg.StoreTimeout)
				after(r)
			})
		})
	}
}

// ends closes both sessions, and checks that nothing is left.
func (r *midMove) ends() {
	r.t.Helper()
	r.s.End(types.EndDropped)
	r.o.End(types.EndDropped)
	time.Sleep(time.Minute)
	r.isRotated(r.old)
	r.nothingLeft()
	r.other.nothingLeft()
}

func TestUndisturbedMove(t *testing.T) {
	duringAMove(t, func(*midMove) {}, func(r *midMove) {
		r.must(r.amend(r.s, r.held))
		r.other.release(r.o, r.theirs)
		r.must(r.amend(r.s, r.waiting.granted(r.t)))
		if got := r.losses(); len(got) > 0 {
			r.t.Errorf("lost %+v", got)
		}
		r.ends()
	})
}

// A lock that ends in the sidecar during its move is free afterwards, even if the release does not
// reach the store.
func TestEndsDuringAMove(t *testing.T) {
	for name, happens := range map[string]func(r *midMove){
		"release and cancel": func(r *midMove) {
			r.release(r.s, r.held)
			r.leave()
		},
		"the session ends": func(r *midMove) { r.s.End(types.EndDropped) },
		"the wait wins": func(r *midMove) {
			r.other.release(r.o, r.theirs)
			g := r.waiting.granted(r.t)
			r.must(r.amend(r.s, g))
			time.Sleep(time.Second)
			r.release(r.s, g)
			r.release(r.s, r.held)
		},
		"unheard": func(r *midMove) {
			for _, op := range []string{"Release", "Cancel", "Withdraw"} {
				r.st.set(op, fault{refuse: true})
			}
			r.leave()
			r.s.End(types.EndDropped)
			time.Sleep(time.Second)
			r.st.lift("Release", "Cancel", "Withdraw")
		},
		"the old lease is lost": func(r *midMove) {
			for _, l := range r.m.leases.All() {
				if l.ID() == r.old {
					r.m.leases.Lose(l, types.LostStore)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			duringAMove(t, happens, func(r *midMove) {
				for range 2 * 60 { // a wait that continues gets the key
					synctest.Wait()
					time.Sleep(100 * time.Millisecond)
				}
				if l := r.stored("held"); l.Held {
					r.t.Errorf("the store has %+v", l)
				}
				r.ends()
			})
		})
	}
}

// The wait is granted during its move, and its lock is released with a success when the answer to
// the move arrives. This answer does not free the lock without the success.
func TestASuccessDuringAMoveIsKept(t *testing.T) {
	var skipped *answer
	duringAMove(t, func(r *midMove) {
		r.other.release(r.o, r.theirs)
		g := r.waiting.granted(r.t)
		req := skipping
		req.Key = "line"
		skipped = r.other.ask(context.Background(), r.o, req)
		synctest.Wait()
		r.st.set("Release", fault{times: 1, before: 3 * time.Second})
		go func() {
			_, err := r.m.Release(context.Background(), r.s, types.ReleaseRequest{Key: g.Key, Token: g.Token, Outcome: store.Success, Result: []byte(`1`)})
			r.must(err)
		}()
		synctest.Wait()
	}, func(r *midMove) {
		<-skipped.done
		if _, ok := errors.AsType[*types.SkippedError](skipped.err); !ok {
			r.t.Errorf("the next call got %+v, %v", skipped.g, skipped.err)
		}
		r.ends()
	})
}

// A move whose answer was lost is committed much later, and keeps the row locked until then. A
// locked row does not prove that the lock was not moved, so the new lease is kept as long as the
// old one.
// Proves: trap late statement
func TestAMoveIsCommittedMuchLater(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		const ttl = 3 * time.Second // its lease is renewed, and closed, within less than a pause between two moves
		current := func() store.LeaseID { return r.m.leases.Get(ttl).ID() }
		g := r.ask(context.Background(), s, types.Request{Key: "k", TTL: ttl}).granted(t)
		old := current()
		r.st.set("Move", fault{times: 1, lose: true})
		r.st.lockRows("k")
		r.st.failover()
		for r.st.count("Move") < 2 {
			time.Sleep(100 * time.Millisecond)
		}
		states, err := r.st.Store.Move(context.Background(), old, current(), []store.Move{{Attempt: store.Attempt{Key: "k"}, Token: g.Token}})
		if r.must(err); states[0] != store.Holds {
			t.Fatalf("status %d", states[0])
		}
		time.Sleep(time.Minute)
		if l := r.stored("k"); !l.Held || l.Token != g.Token {
			t.Errorf("held in the sidecar, but the store has %+v", l)
		}
		r.must(r.amend(s, g))
		r.st.lockRows()
		time.Sleep(r.rotation())
		r.isRotated(old)
		r.must(r.amend(s, g))
		if got := r.losses(); len(got) > 0 {
			t.Errorf("lost %+v", got)
		}
	})
}

// A second failover loses the lock that is being moved. The answer to the move arrives during the
// second verification. A lock without a lease in the store is lost, even if it is moved meanwhile.
func TestAForgottenLockIsMovedDuringTheVerification(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		moved, read := r.st.holdAnswer("Move"), make(chan struct{})
		r.st.failover()
		for r.st.count("Move") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		r.forget(g)
		r.st.set("HeldUnder", fault{held: read})
		asked := r.st.count("HeldUnder")
		r.st.failover()
		for r.st.count("HeldUnder") == asked {
			time.Sleep(100 * time.Millisecond)
		}
		moved()
		synctest.Wait()
		r.st.lift("HeldUnder")
		close(read)
		synctest.Wait()
		if got := r.losses(); len(got) != 1 || got[0].Reason != types.LostStore {
			t.Errorf("lost %+v", got)
		}
	})
}

// During a move, the lock may be under either lease in the store. So the lock is lost with either
// of them, before the store grants it again.
func TestLocksBeingMovedNeedBothLeases(t *testing.T) {
	duringAMove(t, func(r *midMove) {
		r.m.leases.Lose(r.m.leases.Get(r.m.cfg.TTL), types.LostStore)
		if lostReason(r.amend(r.s, r.held)) == "" {
			r.t.Error("the lock counts as held, but its new lease is lost")
		}
	}, func(r *midMove) {
		if got := r.losses(); len(got) != 1 || got[0].Token != r.held.Token {
			r.t.Errorf("lost %+v", got)
		}
		if l := r.stored("held"); l.Held {
			r.t.Errorf("the store has %+v", l)
		}
		r.ends()
	})
}

// During a move, the store loses the lease to which the locks are moved. The app hears that the store has lost its lock: nobody's time was over.
// Proves: promise 10
func TestALossDuringAMoveIsTheStores(t *testing.T) {
	duringAMove(t, func(r *midMove) {
		r.must(r.st.Store.Revoke(context.Background(), []store.LeaseID{r.lease()}))
		if _, err := r.try(r.eitherSession(), "other"); err != nil { // which finds the loss, and asks again under another lease
			r.t.Error(err)
		}
		synctest.Wait() // the renewer has seen it, before the answer to the move
	}, func(r *midMove) {
		if got := r.losses(); len(got) != 1 || got[0].Token != r.held.Token || got[0].Reason != types.LostStore {
			r.t.Errorf("lost %+v", got)
		}
	})
}

// The server fails over again during a move. No lock is lost, and all older leases are closed.
func TestAFailoverDuringAMove(t *testing.T) {
	duringAMove(t, func(r *midMove) {
		r.orphan("back", uuid.New())
		r.st.failover()
		time.Sleep(r.m.cfg.RenewInterval)
	}, func(r *midMove) {
		time.Sleep(2 * r.rotation())
		r.must(r.amend(r.s, r.held))
		r.other.release(r.o, r.theirs)
		r.must(r.amend(r.s, r.waiting.granted(r.t)))
		if got := r.losses(); len(got) > 0 || r.stored("back").Held {
			r.t.Errorf("lost %+v", got)
		}
		r.ends()
	})
}

// A sidecar that stops during a move leaves nothing behind.
func TestAStopDuringAMove(t *testing.T) {
	duringAMove(t, func(r *midMove) { r.m.Stop() }, func(r *midMove) {
		r.o.End(types.EndDropped)
		time.Sleep(r.m.cfg.TTL)
		r.nothingStored()
	})
}

// A lock that cannot be moved, because the store fails or its row is locked, stays under its lease.
// It is moved later, and the calls to the store have pauses.
func TestMovesAreTriedUntilTheySucceed(t *testing.T) {
	for name, hinder := range map[string]func(d *double, on bool){
		"the store fails": func(d *double, on bool) {
			if d.lift("Move"); on {
				d.set("Move", fault{refuse: true})
			}
		},
		"rows are locked": func(d *double, on bool) {
			if d.lockRows(); on {
				d.lockRows("mine")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				s := r.eitherSession()
				mine, old := r.lock(s, "mine"), r.lease()
				r.orphan("back", uuid.New())
				hinder(r.st, true)
				r.st.failover()
				time.Sleep(2 * time.Minute)
				if n := r.st.count("Move"); n < 10 || n > 600 || !r.stored("back").Held {
					t.Errorf("%d moves in two minutes", n)
				}
				hinder(r.st, false)
				time.Sleep(r.rotation())
				if r.stored("back").Held {
					t.Error("an orphan still holds its key")
				}
				r.must(r.amend(s, mine))
				r.isRotated(old)
			})
		})
	}
}

// A watch continues under the fresh lease.
func TestWatchesMoveToTheFreshLease(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		w := r.watch(r.eitherSession(), "k")
		old := r.lease()
		r.st.failover()
		time.Sleep(r.rotation())
		r.isRotated(old)
		if l := r.m.leases.Get(r.m.cfg.TTL); l == nil || l.Users() != 1 {
			t.Errorf("watched under %+v", l)
		}
		g := other.lock(other.eitherSession(), "k")
		synctest.Wait()
		if got := w.want(store.EventAcquired); got[0].Lock.Token != g.Token {
			t.Errorf("notified of %+v", got)
		}
	})
}

// A lock is lost early while it is moved: its app may believe in it until the deadline, as without a move, so the answer to the move frees
// nothing before. When the app gives it up, or after the deadline, it keeps the key for nobody.
func TestALockThatIsLostEarlyDuringItsMoveIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		key     string
		givesUp bool
	}{
		"a lock":                     {"held", false},
		"a lock that a wait has got": {"line", false},
		"a lock, given up":           {"held", true},
		"a lock of a wait, given up": {"line", true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s, o := r.eitherSession(), other.eitherSession()
				mine := map[string]types.Grant{"held": r.lock(s, "held")}
				theirs, old := other.lock(o, "line"), r.lease()
				waiting := r.wait(s, "line", types.WaitForever)
				answer := make(chan struct{})
				r.st.set("Move", fault{times: 1, held: answer})
				r.st.failover()
				for r.st.count("Move") == 0 {
					time.Sleep(100 * time.Millisecond)
				}
				other.release(o, theirs)
				mine["line"] = waiting.granted(t)
				r.must(r.amend(s, mine["line"]))
				next := other.wait(other.eitherSession(), c.key, types.WaitForever)
				var until time.Time
				for _, l := range r.m.leases.All() {
					if l.ID() == old {
						until = l.Deadline()
						r.m.leases.Lose(l, types.LostExpired)
					}
				}
				close(answer)
				synctest.Wait()
				if c.givesUp {
					until = time.Now().Add(time.Second)
					time.Sleep(time.Second)
					if reason := lostReason(r.tryRelease(s, c.key, mine[c.key].Token)); reason != types.LostExpired {
						t.Errorf("told %q", reason)
					}
				}
				for !next.isOver() && time.Since(until) < time.Minute {
					time.Sleep(10 * time.Millisecond)
					synctest.Wait()
				}
				if late := time.Since(until); !next.isOver() || late < 0 || late > time.Second {
					t.Errorf("granted to another: %v, %s late", next.isOver(), late)
				}
				s.End(types.EndDropped)
				next.release(other)
				time.Sleep(time.Minute)
				r.nothingLeft()
				other.nothingLeft()
			})
		})
	}
}
