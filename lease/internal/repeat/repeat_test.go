package repeat

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

func idOf(key string) store.AttemptID { return AttemptID(uuid.UUID{1}, key) }

// ended reports whether a withdrawal ends its call.
func ended(w *Withdrawal) bool {
	select {
	case <-w.Ended():
		return true
	default:
		return false
	}
}

// TestAttemptID: the attempts of a request and a key have one id. Another request, or another key, has another.
func TestAttemptID(t *testing.T) {
	one, other := uuid.UUID{1}, uuid.UUID{2}
	if again := AttemptID(one, "k"); again != idOf("k") {
		t.Error("a repeat has another id")
	}
	if AttemptID(one, "k") == AttemptID(one, "l") || AttemptID(one, "k") == AttemptID(other, "k") {
		t.Error("another key, or another request, has the same id")
	}
}

// TestCallsTakeTurns: each call of a request begins when the one before has left. Other requests do not wait for it.
func TestCallsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rs Requests
		began := time.Now()
		var begins []time.Duration
		for range 5 {
			go func() {
				r := rs.Use(idOf("k"), nil)
				defer rs.Done(r, nil)
				<-r.Turns()
				begins = append(begins, time.Since(began)) // the race detector sees whether the turn guards it
				time.Sleep(time.Second)
				r.Leave()
			}()
		}
		synctest.Wait()
		<-rs.Use(idOf("other"), nil).Turns()
		if time.Since(began) != 0 {
			t.Error("another request waited")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}; !slices.Equal(begins, want) {
			t.Errorf("began at %v", begins)
		}
		if n := rs.Count(); n != 1 {
			t.Errorf("%d requests have calls, want the other one alone", n)
		}
	})
}

// TestARequestInUseStays: calls of a request find each other, however many other requests come. Only requests without calls are forgotten:
// the oldest first, or each at once if none are remembered.
func TestARequestInUseStays(t *testing.T) {
	for _, most := range []int{0, 3} {
		var rs Requests
		if most > 0 {
			if err := rs.Remember(most); err != nil {
				t.Fatal(err)
			}
		}
		used := rs.Use(idOf("used"), nil)
		rs.Done(rs.Use(idOf("used"), nil), nil) // another of its calls
		var idle []*Request
		for _, key := range []string{"a", "b", "c", "d", "e"} {
			r := rs.Use(idOf(key), nil)
			rs.Done(r, nil)
			idle = append(idle, r)
		}
		if rs.Use(idOf("used"), nil) != used {
			t.Error("a second call does not find the first")
		}
		for i, key := range []string{"a", "b", "c", "d", "e"} {
			if found, want := rs.Use(idOf(key), nil) == idle[i], i >= len(idle)-most; found != want {
				t.Errorf("%d are remembered: %q was found: %v", most, key, found)
			}
		}
		if n := rs.Count(); n != 6 {
			t.Errorf("%d requests have calls", n)
		}
		if most > 0 && rs.idle.Len() > 0 {
			t.Errorf("%d with calls count as remembered", rs.idle.Len())
		}
	}
}

// TestUseAgain: a call may continue with its request as long as no other one has its id, because calls of two could not take turns.
func TestUseAgain(t *testing.T) {
	for _, remembers := range []bool{false, true} {
		var rs Requests
		forget := func() {
			if remembers {
				if err := rs.Remember(1); err != nil {
					t.Fatal(err)
				}
			}
		}
		forget()
		r := rs.Use(idOf("k"), nil)
		if !rs.UseAgain(r) {
			t.Error("in use: refused")
		}
		rs.Done(r, nil)
		rs.Done(r, nil)
		if forget(); !rs.UseAgain(r) {
			t.Error("forgotten, and not made again: refused")
		}
		if rs.Use(idOf("k"), nil) != r {
			t.Error("a later call does not find the one that continues")
		}
		rs.Done(r, nil)
		rs.Done(r, nil)
		forget()
		later := rs.Use(idOf("k"), nil)
		if rs.UseAgain(r) {
			t.Error("made again, in use: not refused")
		}
		rs.Done(later, nil)
		if rs.UseAgain(r) == remembers { // a later one that is forgotten, too, is in nobody's way
			t.Errorf("made again, without calls, remembered %v: wrong answer", remembers)
		}
	}
}

// TestWithdraw: a release by the id ends the calls that run. It does not end those that are done, those that come later, and those of
// other requests. A call for several keys ends once.
func TestWithdraw(t *testing.T) {
	var rs Requests
	k, l, other := rs.Use(idOf("k"), nil), rs.Use(idOf("l"), nil), rs.Use(idOf("other"), nil)
	done, single, several, elsewhere, later := NewWithdrawal(), NewWithdrawal(), NewWithdrawal(), NewWithdrawal(), NewWithdrawal()
	rs.Use(idOf("k"), done)
	rs.Use(idOf("k"), single)
	rs.Use(idOf("k"), several)
	rs.Use(idOf("l"), several)
	rs.Use(idOf("other"), elsewhere)
	rs.Done(k, done)
	rs.Withdraw(k)
	rs.Withdraw(l)
	rs.Use(idOf("k"), later)
	for name, c := range map[string]struct {
		w    *Withdrawal
		want bool
	}{
		"done": {done, false}, "for one key": {single, true}, "for several keys": {several, true},
		"of another request": {elsewhere, false}, "later": {later, false},
	} {
		if ended(c.w) != c.want {
			t.Errorf("%s: ended %v", name, !c.want)
		}
	}
	rs.Withdraw(other)
	if !ended(elsewhere) {
		t.Error("not ended")
	}
}

// TestWhoHasTheGrant: a grant is handed back when the last call that got it takes it back, and not if a later grant is recorded. A repeat
// learns of the grant as long as a call has it.
func TestWhoHasTheGrant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rs Requests
		r := rs.Use(idOf("k"), nil)
		last, have := int64(10), 0 // the last grant, and the calls that have it
		t.Repeat(map[string]func(*rapid.T){
			"a new grant": func(*rapid.T) {
				last++
				have = 1
				r.Give(last)
			},
			"the same grant": func(*rapid.T) {
				have++
				r.Give(last)
			},
			"taken back": func(t *rapid.T) {
				if have == 0 {
					t.Skip("nobody has it")
				}
				have--
				if nobody := r.TakeBack(last); nobody != (have == 0) {
					t.Fatalf("nobody has it: %v, but %d do", nobody, have)
				}
			},
			"an older one taken back": func(t *rapid.T) {
				if r.TakeBack(last - 1) {
					t.Fatal("the last grant would be handed back")
				}
			},
			"released": func(*rapid.T) {
				last++ // the next grant has a greater token
				have = 0
				r.Forget()
			},
			"": func(t *rapid.T) {
				if got := r.Repeated(); (got != 0) != (have > 0) || have > 0 && got != last {
					t.Fatalf("a repeat learns of %d; %d calls have %d", got, have, last)
				}
			},
		})
	})
}
