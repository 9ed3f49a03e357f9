package multi

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/roomtest"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig has groups in one session, on a store that writes down which keys are asked for together. Its helpers: ask, keys, stored; checks: must,
// isFree, nothingLeft.
type rig struct {
	*roomtest.Floor
	heartbeat.Users // never called: no lease is lost
	t               *testing.T
	st              *recorder
	aq              *attempt.Acquirer
	gs              *Groups
	s               *holdings.Session
}

func newRig(t *testing.T, inline bool, change ...func(*types.Config)) *rig {
	t.Helper()
	r := &rig{t: t, st: &recorder{Store: roomtest.NewStore(inline)}}
	r.Floor = roomtest.New(t, r.st, r, change...)
	var err error
	r.aq, err = attempt.New(r.Ctx, attempt.Config{
		Config: r.Config, Observer: r.Observer, Store: r.st, Lanes: r.Lanes, HeldCache: r.HeldCache, Leases: r.Leases,
		Needs: r.Needs, Background: r.Background, Draining: r.Draining,
	})
	r.must(err)
	r.Hear = r.aq.Queue.News
	r.gs = New(r.Ctx, Config{Config: r.Config, Acquirer: r.aq, Amends: r.Lanes.Amends, Inline: inline, Background: r.Background})
	r.s, err = r.aq.Holdings().Open(types.SessionOptions{})
	r.must(err)
	r.Background.Spawn(func() { r.Leases.Run(r.Ctx) })
	return r
}

// bubble runs a test in virtual time, once with a store whose questions cost a round trip and once with an inline one.
func bubble(t *testing.T, test func(t *testing.T, inline bool)) {
	t.Helper()
	for name, inline := range map[string]bool{"round trips": false, "inline": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, inline) })
		})
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// answer is the result of an Acquire that runs beside the test.
type answer struct {
	grants []types.Grant
	err    error
	done   chan struct{}
}

// ask acquires keys, which are separated by spaces. It returns when the call waits for something, or is over.
func (r *rig) ask(ctx context.Context, req types.Request, keys string) *answer {
	a := &answer{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.grants, a.err = r.gs.Acquire(ctx, r.s, strings.Fields(keys), &req)
	}()
	synctest.Wait()
	return a
}

// keys are those of the grants, after the call has got all.
func (r *rig) keys(a *answer) string {
	r.t.Helper()
	<-a.done
	r.must(a.err)
	var keys []string
	for _, g := range a.grants {
		keys = append(keys, g.Key)
	}
	return strings.Join(keys, " ")
}

func (r *rig) stored(key string) store.Lock {
	r.t.Helper()
	locks, err := r.st.Get(context.Background(), []string{key})
	r.must(err)
	return locks[0]
}

// isFree checks that nobody holds keys.
func (r *rig) isFree(keys string) {
	r.t.Helper()
	synctest.Wait()
	for key := range strings.FieldsSeq(keys) {
		if l := r.stored(key); l.Held {
			r.t.Errorf("%q is held by %q", key, l.Holder.Session)
		}
	}
}

// nothingLeft checks that the session and its calls leave nothing.
func (r *rig) nothingLeft() {
	r.t.Helper()
	r.s.End(types.EndDropped)
	synctest.Wait()
	held, err := r.st.List(context.Background(), store.Query{Limit: 10})
	r.must(err)
	for _, l := range held {
		r.t.Errorf("%q is held, and %d wait", l.Key, l.QueueLength)
	}
	for _, remembered := range []map[string]int{r.aq.Remembered(), r.aq.Holdings().Remembered()} {
		for what, n := range remembered {
			if n != 0 {
				r.t.Errorf("%d %s are remembered", n, what)
			}
		}
	}
}

// recorder writes down which keys are asked for together. Others may keep rows of keys locked.
type recorder struct {
	*roomtest.Store

	mu     sync.Mutex
	asked  []string        // the keys of each question
	asking int             // questions under way
	most   int             // the most at a time
	gate   chan struct{}   // if set, questions wait until it is closed
	then   func()          // happens after the next question
	locked map[string]bool // keys
}

// questions are the keys of each question so far.
func (d *recorder) questions() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.asked, ", ")
}

// lockRows locks the rows of these keys, and unlocks all others.
func (d *recorder) lockRows(keys string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.locked = map[string]bool{}
	for key := range strings.FieldsSeq(keys) {
		d.locked[key] = true
	}
}

func (d *recorder) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	d.mu.Lock()
	var keys []string
	for _, a := range asks {
		keys = append(keys, a.Key)
	}
	d.asked, d.asking = append(d.asked, strings.Join(keys, " ")), d.asking+1
	d.most = max(d.most, d.asking)
	gate, then := d.gate, d.then
	d.then = nil
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	answers := make([]store.Answer, len(asks))
	var err error
	for i, a := range asks {
		if answers[i].Outcome = store.RowLocked; !d.isLocked(a.Key) && err == nil {
			var one []store.Answer
			if one, err = d.Store.Acquire(ctx, []store.Ask{a}); err == nil {
				answers[i] = one[0]
			}
		}
	}
	if then != nil {
		then()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asking--
	return answers, err
}

// AcquireOne is the question of an inline store.
func (d *recorder) AcquireOne(ctx context.Context, ask store.Ask) (store.Answer, error) {
	answers, err := d.Acquire(ctx, []store.Ask{ask})
	return answers[0], err
}

func (d *recorder) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	verdicts := make([]store.Verdict, len(claims))
	var err error
	for i, c := range claims {
		if verdicts[i].Status = store.ClaimRowLocked; !d.isLocked(c.Key) && err == nil {
			var one []store.Verdict
			if one, err = d.Store.Release(ctx, []store.Claim{c}); err == nil {
				verdicts[i] = one[0]
			}
		}
	}
	return verdicts, err
}

func (d *recorder) isLocked(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.locked[key]
}
