package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// hour returns a request whose MinHold is long, so that its key stays kept after the death of its
// lease.
func hour(key string) types.Request {
	return types.Request{Key: key, MinHold: time.Hour, TTL: 5 * time.Second, NoCache: true}
}

// An attempt is granted by a hand-off without news, and its lease is lost before the next check.
// The call does not wait for its own grant, and leaves nothing behind.
func TestUndeliveredHandOff(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		g := other.lock(o, "k")
		req := hour("k")
		req.Wait = types.WaitForever
		a := r.ask(context.Background(), s, req)
		synctest.Wait()
		r.st.dropNews = true
		other.release(o, g)
		r.clk.stop(10 * time.Second)
		time.Sleep(30 * time.Second)
		if !a.isOver() {
			t.Fatalf("the call waits for its own grant: %+v", r.stored("k"))
		}
		r.m.HandBack(s, a.granted(t))
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// The answer to an acquire is lost, and the outage lasts longer than the lease.
func TestUndeliveredInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		r.st.set("Acquire", fault{times: 1, forget: true, then: func() {
			for _, op := range []string{"Withdraw", "Renew", "Revoke"} {
				r.st.set(op, fault{lose: true})
			}
		}})
		if g, err := r.m.Acquire(context.Background(), s, hour("k")); err == nil {
			t.Errorf("got %+v", g)
		}
		time.Sleep(20 * time.Second)
		r.st.lift("Withdraw", "Renew", "Revoke")
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// The lease is lost while the answer to the acquire is in flight.
func TestUndeliveredLateAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		answer := r.st.holdAnswer("Acquire")
		a := r.ask(context.Background(), s, hour("k"))
		synctest.Wait()
		r.clk.stop(6 * time.Second)
		time.Sleep(4 * time.Second)
		answer()
		<-a.done
		if a.err == nil {
			r.m.HandBack(s, a.g)
		}
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// A part is lost with its lease. The group does not wait for its own part.
func TestUndeliveredPart(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another(opt)
		s, o := r.eitherSession(), other.eitherSession()
		b := other.lock(o, "b")
		req := hour("")
		req.Wait = types.WaitForever
		a := r.askAll(context.Background(), s, req, "a", "b")
		r.clk.stop(6 * time.Second)
		time.Sleep(20 * time.Second)
		other.release(o, b)
		time.Sleep(20 * time.Second)
		if !a.isOver() {
			t.Fatalf("the group waits for its own part: %+v", r.stored("a"))
		}
		for _, g := range a.granted(t, "a", "b") {
			r.m.HandBack(s, g)
		}
		time.Sleep(time.Minute)
		r.nothingLeft()
	})
}

// A grant was not delivered, and the store fails until the end of the lease.
func TestUndeliveredHandBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		g := r.get(s, hour("k"))
		r.st.setAll(fault{lose: true})
		r.m.HandBack(s, g)
		time.Sleep(10 * time.Second)
		r.st.lift(everyOp...)
		time.Sleep(30 * time.Second)
		r.nothingLeft()
	})
}

// An earlier answer was not delivered, but a repeat returned the grant. The grant stays held.
func TestUndeliveredAndRepeatedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		req := hour("k")
		req.RequestID, req.MinHold = uuid.New(), time.Minute
		undelivered := r.get(s, req)
		r.st.setAll(fault{lose: true})
		r.m.HandBack(s, undelivered)
		time.Sleep(10 * time.Second)
		r.st.lift(everyOp...)
		r.st.set("Withdraw", fault{forget: true})
		for r.stored("k").Held {
			time.Sleep(10 * time.Millisecond)
		}
		g := r.get(s, req)
		r.st.lift("Withdraw")
		time.Sleep(20 * time.Second)
		r.isHeldUnder(g)
	})
}

// An attempt's lease is lost when the attempt is about to queue. The statement arrives before the
// revocation. The attempt keeps neither the key nor a queue position.
func TestUndeliveredQuestionAfterItsLease(t *testing.T) {
	for _, freed := range []string{"before the enqueue", "before the revocation", "after the revocation"} {
		t.Run(freed, func(t *testing.T) {
			bubble(t, func(t *testing.T, opt option) {
				r := newRig(t, opt)
				other := r.another(opt)
				s, o := r.eitherSession(), other.eitherSession()
				g := other.lock(o, "k")
				req := hour("k")
				req.Wait = types.WaitForever
				proceed := func() {}
				r.st.set("Enqueue", fault{times: 1, first: func() {
					proceed = r.st.hold("Revoke")
					for _, b := range r.m.acquirer.Queue.Waiting() {
						r.m.leases.Lose(b.Lease(), types.LostStore)
					}
					if freed == "before the enqueue" {
						other.release(o, g)
					}
				}})
				a := r.ask(context.Background(), s, req)
				synctest.Wait()
				if freed == "before the revocation" {
					other.release(o, g)
				}
				synctest.Wait()
				proceed()
				synctest.Wait()
				if freed == "after the revocation" {
					other.release(o, g)
				}
				time.Sleep(time.Second)
				if !a.isOver() {
					t.Fatalf("the call waits for its own grant: %+v", r.stored("k"))
				}
				r.m.HandBack(s, a.granted(t))
				time.Sleep(time.Minute)
				r.nothingLeft()
			})
		})
	}
}
