package attempt

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// ending is a cell of the table in end.go.
type ending struct{ phase, reason, sent string }

// endingsOf reads the table in end.go.
func endingsOf(t *testing.T) (all []ending) {
	t.Helper()
	text, err := os.ReadFile("end.go")
	if err != nil {
		t.Fatal(err)
	}
	var columns []string
	for _, row := range regexp.MustCompile(`(?m)^//\t(.*)$`).FindAllStringSubmatch(string(text), -1) {
		cells := strings.Split(row[1], "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		if len(cells) != len(columns) {
			t.Fatalf("the row %q has %d cells, want %d", row[1], len(cells), len(columns))
		}
		for i := range cells[1:] {
			all = append(all, ending{cells[0], columns[i+1], cells[i+1]})
		}
	}
	return all
}

// kinds are requests whose remains in the store last for different times.
var kinds = map[string]types.Request{
	"a session's lock":   {TTL: leaseTTL},
	"one with a MinHold": {TTL: leaseTTL, MinHold: time.Minute},
	"a bind:ttl lock":    {TTL: time.Minute, Bind: types.BindTTL},
}

// reach brings a waiting attempt into a phase. answer lets the question under way be answered; lost: the store does not carry it out, and its
// answer is lost.
var reach = map[string]func(r *rig, b *Attempt) (answer func(lost bool)){
	"asking": func(r *rig, b *Attempt) func(bool) {
		answer := r.st.Hold("Acquire")
		r.start(b)
		return answer
	},
	"arrived": func(r *rig, b *Attempt) func(bool) {
		first := r.aq.arrivals.join(b.req)
		b.arrival.Leave()
		b.arrival = r.aq.arrivals.join(b.req)
		r.start(b)
		return func(bool) { first.Leave() }
	},
	"enqueuing": func(r *rig, b *Attempt) func(bool) {
		r.st.HoldElsewhere(r.t, b.Key())
		answer := r.st.Hold("Enqueue")
		r.start(b)
		return answer
	},
	"queued": func(r *rig, b *Attempt) func(bool) {
		r.st.HoldElsewhere(r.t, b.Key())
		r.start(b)
		return func(bool) {}
	},
	"cancelling": func(r *rig, b *Attempt) func(bool) {
		r.st.HoldElsewhere(r.t, b.Key())
		r.start(b)
		answer := r.st.Hold("Cancel")
		b.timeIsUp()
		synctest.Wait()
		return answer
	},
	"won": func(r *rig, b *Attempt) func(bool) {
		r.start(b)
		return func(bool) {}
	},
	"not won": func(r *rig, b *Attempt) func(bool) {
		r.st.HoldElsewhere(r.t, b.Key())
		r.start(b)
		b.Finish(ErrAttemptLost)
		return func(bool) {}
	},
}

// end ends an attempt for a reason.
func (r *rig) end(b *Attempt, reason string, answer func(lost bool)) {
	switch reason {
	case "caller left":
		b.Cancel()
	case "time is up":
		b.timeIsUp()
	case "lease lost", "bind:ttl: lease lost":
		r.Leases.Lose(b.Lease(), types.LostExpired)
	case "no answer":
		answer(true)
	case "late answer": // after a loss
		r.Leases.Lose(b.Lease(), types.LostExpired)
		b.onNews(store.Answer{Outcome: store.Granted, Token: 1, ExpiresIn: time.Minute})
	default:
		r.t.Fatalf("the table has the reason %q", reason)
	}
	synctest.Wait()
}

// TestEndings: an attempt sends what the table in end.go says, and repeats it for as long as the store may have something of it, and no
// longer.
// Proves: promise 7, promise 9
func TestEndings(t *testing.T) {
	for kind, req := range kinds {
		for _, e := range endingsOf(t) {
			isTTL := req.Bind == types.BindTTL
			if e.sent == "-" || e.reason == "lease lost" && isTTL || strings.HasPrefix(e.reason, "bind:ttl") && !isTTL {
				continue
			}
			if isTTL && e.reason == "late answer" && e.phase == "not won" {
				e.sent = "nothing" // it did not end with its lease
			}
			t.Run(fmt.Sprintf("%s/%s/%s", kind, e.phase, e.reason), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { answeredEnding(newRig(t, false), req, e) })
				synctest.Test(t, func(t *testing.T) { unansweredEnding(newRig(t, false), req, e) })
			})
		}
	}
}

// answeredEnding checks what is sent if the store answers.
func answeredEnding(r *rig, req types.Request, e ending) {
	b, answer := r.attemptIn(e.phase, req)
	r.end(b, e.reason, answer)
	time.Sleep(4 * storeTimeout)
	want := map[string][]string{
		"cancel": {"Cancel"}, "withdraw": {"Withdraw"}, "withdraw, again": {"Withdraw", "Withdraw"}, "release": {"Release"},
	}[e.sent]
	if sent := r.st.Sent(); fmt.Sprint(sent) != fmt.Sprint(want) {
		r.t.Errorf("sent %q, want %q (%s)", sent, want, e.sent)
	}
	if over := e.sent != "answer" && e.sent != "in turn"; b.HasEnded() != over {
		r.t.Errorf("over: %v", !over)
	}
	answer(false)
	synctest.Wait()
	if !b.HasEnded() {
		r.t.Error("it is not over after the answer")
	}
}

// unansweredEnding checks for how long it is repeated if the store does not answer.
func unansweredEnding(r *rig, req types.Request, e ending) {
	b, answer := r.attemptIn(e.phase, req)
	defer answer(true)
	now, deadline, lasts := time.Now(), b.Lease().Deadline(), b.lasts()
	var until time.Time
	switch withdrawn := strings.HasPrefix(e.sent, "withdraw") || e.sent == "cancel"; {
	case withdrawn && (req.Bind == types.BindTTL || req.MinHold > 0):
		until = deadline.Add(lasts)
	case withdrawn, e.sent == "release" && lasts == req.TTL && req.Bind == types.BindSession:
		until = deadline
	case e.sent == "release":
		until = now.Add(lasts)
	default:
		return
	}
	r.st.LoseAll()
	r.end(b, e.reason, answer)
	time.Sleep(time.Hour)
	sent := r.st.Sent()
	last := r.st.LastSent()
	if early, late := until.Sub(last) > 2*storeTimeout, last.Sub(until) > time.Second; early || late {
		r.t.Errorf("%d tries, the last %s before its end", len(sent), until.Sub(last))
	}
}

// TestEndingAtADeadline: the revocation of a lease that is past its deadline frees what a session's attempt has in the store, but not a
// MinHold.
func TestEndingAtADeadline(t *testing.T) {
	for _, phase := range []string{"enqueuing", "queued", "cancelling"} {
		for kind, want := range map[string]string{"a session's lock": "[]", "one with a MinHold": "[Withdraw]"} {
			t.Run(kind+"/"+phase, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, false)
					b, answer := r.attemptIn(phase, kinds[kind])
					defer answer(false)
					time.Sleep(time.Until(b.Lease().Deadline()))
					r.end(b, "lease lost", nil)
					if sent := fmt.Sprint(r.st.Sent()); sent != want || !b.HasEnded() {
						t.Errorf("sent %s, want %s; over %v", sent, want, b.HasEnded())
					}
				})
			})
		}
	}
}

// attemptIn makes an attempt of a call that waits, and brings it into a phase.
func (r *rig) attemptIn(phase string, req types.Request) (b *Attempt, answer func(lost bool)) {
	r.t.Helper()
	into := reach[phase]
	if into == nil {
		r.t.Fatalf("the table has the phase %q", phase)
	}
	req.Key, req.Wait = "k", types.WaitForever
	_, b = r.attempt(&req)
	answer = into(r, b)
	r.st.Forget()
	return b, answer
}
