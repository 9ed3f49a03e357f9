package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// world is two sidecars on one store, with their apps. It checks all answers that the apps get.
type world struct {
	t    *rapid.T
	side [2]*rig
	wg   sync.WaitGroup

	mu       sync.Mutex
	sessions []*member
	held     []*claimed
	last     map[string]int64 // the last token that was returned, by key
	released map[int64]bool
	amended  map[int64]time.Time // the earliest end that a change requested
	calls    []*pendingCall
	requests map[uuid.UUID]types.Request
	asked    [2]atomic.Int64 // acquires of each sidecar
	open     openSpans

	began time.Time
	story []string
}

// notef adds an event to the story that a failure prints. w.mu is held.
func (w *world) notef(format string, args ...any) {
	w.story = append(w.story, fmt.Sprintf("%9s ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// wrongf reports an error with the story. w.mu is held.
func (w *world) wrongf(format string, args ...any) {
	w.t.Errorf(format+"\n%s", append(args, strings.Join(w.story, "\n"))...)
}

type member struct {
	side int
	s    *holdings.Session
}

// claimed is a lock that an app got.
type claimed struct {
	types.Grant
	side  int
	owner *member // nil for bind:ttl
	until time.Time
	// over is set when the app gave the lock up or learned of its loss.
	over bool
}

type pendingCall struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, last: map[string]int64{}, released: map[int64]bool{}, amended: map[int64]time.Time{}, requests: map[uuid.UUID]types.Request{}, began: time.Now()}
	space := memory.NewSpace()
	for i := range w.side {
		var opts []option
		if rapid.Bool().Draw(t, "inline") {
			opts = append(opts, inline)
		}
		if rapid.Bool().Draw(t, "polls") {
			opts = append(opts, polling)
		}
		if rapid.Bool().Draw(t, "keeps") {
			opts = append(opts, keeping)
		}
		if rapid.Bool().Draw(t, "traced") {
			opts = append(opts, w.open.opt())
		}
		w.side[i] = newRigOn(t, space, string(rune('a'+i)), opts...)
	}
	return w
}

// told checks that an app may hold a lock that it got. Another app that got the lock before must
// have given it up or lost it, or its time must be over.
func (w *world) told(c *claimed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	c.until = now.Add(c.ExpiresIn)
	w.notef("%s: granted %q %d %s, %s, waited %s", w.side[c.side].m.cfg.Instance, c.Key, c.Token, c.Bind, c.ExpiresIn, c.Waited)
	if w.released[c.Token] { // released by the same app while it repeated the request
		return
	}
	if c.owner != nil && !w.believes(c, now) { // its session has ended, or the loss was reported
		c.over = true
		return
	}
	if least, ok := w.amended[c.Token]; ok && least.Before(c.until) { // also by the same app
		c.until = least
	}
	if c.Token < w.last[c.Key] {
		w.wrongf("%q: token %d after %d", c.Key, c.Token, w.last[c.Key])
	}
	w.last[c.Key] = c.Token
	for _, o := range w.held {
		if o.Key == c.Key && !o.over && o.Token != c.Token && w.believes(o, now) {
			w.wrongf("%q is held under %d and %d", c.Key, o.Token, c.Token)
		}
		if o.Key == c.Key && o.Token == c.Token && (o.owner != c.owner || c.owner != nil) {
			w.wrongf("%q: token %d was returned twice", c.Key, c.Token)
		}
	}
	w.held = append(w.held, c)
}

// believes reports whether an app rightly believes to hold a lock. For a session, its sidecar
// decides. For bind:ttl, the time in the answer decides.
func (w *world) believes(c *claimed, now time.Time) bool {
	if c.owner == nil {
		return now.Before(c.until)
	}
	h := c.owner.s.Find(c.Key, c.Token)
	return h != nil && h.Lease().Alive(clock.Read(w.side[c.side].clk))
}

// act does something at random. Only the test's own goroutine draws random numbers.
func (w *world) act() {
	actions := []struct {
		name   string
		weight int
		do     func()
	}{
		{"open session", 2, w.openSession},
		{"acquire", 12, w.acquire},
		{"acquire ttl", 4, w.acquireTTL},
		{"repeat", 3, w.repeat},
		{"release", 8, w.release},
		{"amend", 2, w.amend},
		{"end session", 2, w.endSession},
		{"abandon", 3, w.abandon},
		{"discard", 3, w.discard},
		{"break", 6, w.breakSomething},
		{"mend", 5, w.mend},
		{"lock rows", 2, w.lockRows},
		{"news", 3, w.news},
		{"sleep", 12, w.sleep},
		{"stand still", 1, w.standStill},
		{"lose lease", 1, w.loseLease},
		{"force", 1, w.force},
	}
	var names []string
	do := map[string]func(){}
	for _, a := range actions {
		names, do[a.name] = append(names, slices.Repeat([]string{a.name}, a.weight)...), a.do
	}
	do[rapid.SampledFrom(names).Draw(w.t, "action")]()
}

func (w *world) openSession() {
	side := w.drawSide()
	m := &member{side: side}
	s, err := w.side[side].m.OpenSession(types.SessionOptions{OnLost: func(types.Lost) {}})
	if err != nil {
		w.t.Fatal(err)
	}
	m.s = s
	w.sessions = append(w.sessions, m)
}

func (w *world) drawSide() int { return rapid.IntRange(0, 1).Draw(w.t, "side") }

func (w *world) drawKey() string {
	return rapid.SampledFrom([]string{"x", "y", "z"}).Draw(w.t, "key")
}

func (w *world) drawRequest() types.Request {
	return types.Request{
		Key:     w.drawKey(),
		Wait:    rapid.SampledFrom([]time.Duration{0, time.Second, 7 * time.Second, types.WaitForever}).Draw(w.t, "wait"),
		TTL:     rapid.SampledFrom([]time.Duration{0, 500 * time.Millisecond, 2 * time.Second}).Draw(w.t, "ttl"),
		NoCache: rapid.Bool().Draw(w.t, "no-cache"),
	}
}

func (w *world) acquire() {
	if len(w.sessions) == 0 {
		return
	}
	m := rapid.SampledFrom(w.sessions).Draw(w.t, "session")
	w.call(m.side, m, w.drawRequest())
}

func (w *world) acquireTTL() {
	req := w.drawRequest()
	req.Bind = types.BindTTL
	if req.TTL == 0 {
		req.TTL = 10 * time.Second
	}
	side := w.drawSide()
	if rapid.Bool().Draw(w.t, "repeatable") {
		req.RequestID = uuid.New()
		w.requests[req.RequestID] = req
	}
	w.call(side, nil, req)
}

// repeat sends a request again to the same sidecar, because sidecars do not know of each other's
// clean-ups.
func (w *world) repeat() {
	ids := make([]string, 0, len(w.requests))
	for id := range w.requests {
		ids = append(ids, id.String())
	}
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	req := w.requests[uuid.MustParse(rapid.SampledFrom(ids).Draw(w.t, "request"))]
	w.call(w.sideOf(req.RequestID), nil, req)
}

// sideOf always returns the same sidecar for a request.
func (w *world) sideOf(id uuid.UUID) int { return int(id[0]) % 2 }

func (w *world) call(side int, m *member, req types.Request) {
	if req.RequestID != uuid.Nil {
		side = w.sideOf(req.RequestID)
	}
	w.asked[side].Add(1)
	ctx, cancel := context.WithCancel(sampledCall())
	p := &pendingCall{cancel: cancel, done: make(chan struct{})}
	w.calls = append(w.calls, p)
	var s *holdings.Session
	if m != nil {
		s = m.s
	}
	w.wg.Go(func() {
		defer close(p.done)
		g, err := w.side[side].m.Acquire(ctx, s, req)
		switch {
		case err != nil:
		case ctx.Err() != nil: // as the proxy does when the client has left
			w.side[side].m.HandBack(s, g)
		default:
			w.told(&claimed{Grant: g, side: side, owner: m})
		}
	})
}

func (w *world) drawHeld() *claimed {
	w.mu.Lock()
	defer w.mu.Unlock()
	var open []*claimed
	for _, c := range w.held {
		if !c.over {
			open = append(open, c)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return rapid.SampledFrom(open).Draw(w.t, "held")
}

// giveUp notes that a lock is given up, for all claims of the same grant.
func (w *world) giveUp(c *claimed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notef("%s: given up %q %d", w.side[c.side].m.cfg.Instance, c.Key, c.Token)
	w.released[c.Token] = true
	for _, o := range w.held {
		if o.Key == c.Key && o.Token == c.Token {
			o.over = true
		}
	}
}

func (c *claimed) session() *holdings.Session {
	if c.owner == nil {
		return nil
	}
	return c.owner.s
}

func (w *world) release() {
	c := w.drawHeld()
	if c == nil {
		return
	}
	w.giveUp(c)
	w.wg.Go(func() {
		_, _ = w.side[c.side].m.Release(context.Background(), c.session(), types.ReleaseRequest{Key: c.Key, Token: c.Token})
	})
}

// shorten notes that all claims of c's grant last only until then.
func (w *world) shorten(c *claimed, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if least, ok := w.amended[c.Token]; !ok || until.Before(least) {
		w.amended[c.Token] = until
	}
	for _, o := range w.held {
		if o.Key == c.Key && o.Token == c.Token && until.Before(o.until) {
			o.until = until
		}
	}
}

func (w *world) amend() {
	c := w.drawHeld()
	if c == nil {
		return
	}
	req := types.AmendRequest{Key: c.Key, Token: c.Token, SetData: rapid.Bool().Draw(w.t, "data"), Data: []byte("1")}
	if c.owner == nil {
		req.TTL = 3 * time.Second
		w.shorten(c, time.Now().Add(req.TTL)) // it may end at this time, from now on
	}
	w.wg.Go(func() {
		g, err := w.side[c.side].m.Amend(context.Background(), c.session(), req)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.notef("%s: amended %q %d %s, %v", w.side[c.side].m.cfg.Instance, c.Key, c.Token, g.ExpiresIn, err)
		if err == nil && !c.over {
			if now := time.Now(); c.owner != nil && g.ExpiresIn <= 0 {
				w.wrongf("%q: amended, but over", c.Key)
			} else if c.owner == nil {
				c.until = now.Add(g.ExpiresIn)
			}
			if c.Token < w.last[c.Key] && w.believes(c, time.Now()) {
				w.wrongf("%q: %d is held, but %d was granted later", c.Key, c.Token, w.last[c.Key])
			}
		} else if c.owner == nil { // the outcome is unknown, so the time may be shorter now
			c.until = time.Now()
		}
	})
}

// discard hands a grant back as if its answer had not been delivered. Other calls of the same
// request may have the same grant, and keep it.
func (w *world) discard() {
	c := w.drawHeld()
	if c == nil {
		return
	}
	w.mu.Lock()
	w.notef("%s: discarded %q %d", w.side[c.side].m.cfg.Instance, c.Key, c.Token)
	c.over = true
	w.mu.Unlock()
	w.side[c.side].m.HandBack(c.session(), c.Grant)
}

func (w *world) endSession() {
	if len(w.sessions) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.sessions)-1).Draw(w.t, "session")
	m := w.sessions[i]
	w.sessions = slices.Delete(w.sessions, i, i+1)
	m.s.End(rapid.SampledFrom([]types.EndReason{types.EndDropped, types.EndDeleted}).Draw(w.t, "reason"))
	if m.s.Held() != 0 {
		w.t.Error("a session that ended holds locks")
	}
}

func (w *world) abandon() {
	if len(w.calls) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.calls)-1).Draw(w.t, "call")
	w.calls[i].cancel()
	w.calls = slices.Delete(w.calls, i, i+1)
}

func (w *world) breakSomething() {
	op := rapid.SampledFrom(everyOp).Draw(w.t, "operation")
	ms := func(name string) time.Duration {
		return time.Duration(rapid.SampledFrom([]int{0, 1, 100, 700, 4000}).Draw(w.t, name)) * time.Millisecond
	}
	f := fault{times: rapid.IntRange(0, 3).Draw(w.t, "times"), before: ms("before"), after: ms("after")}
	switch rapid.IntRange(0, 4).Draw(w.t, "kind") {
	case 0:
		f.refuse = true
	case 1:
		f.lose = true
	case 2:
		f.forget = true
	case 3:
		f.lose, f.late = true, ms("late") // below the store's timeout, after which the store refuses it
	}
	side := w.drawSide()
	w.side[side].st.set(op, f)
	w.mu.Lock()
	w.notef("%s: broken %s %+v", w.side[side].m.cfg.Instance, op, f)
	w.mu.Unlock()
}

func (w *world) mend() {
	st := w.side[w.drawSide()].st
	st.lift(everyOp...)
	st.lockRows()
}

// lockRows keeps a row locked, as an operator may do.
func (w *world) lockRows() {
	side, key := w.drawSide(), w.drawKey()
	w.side[side].st.lockRows(key)
	w.mu.Lock()
	w.notef("%s: the row of %q is locked", w.side[side].m.cfg.Instance, key)
	w.mu.Unlock()
}

// news sends news at any time, real or forged.
func (w *world) news() {
	r := w.side[w.drawSide()]
	switch rapid.IntRange(0, 4).Draw(w.t, "news") {
	case 0:
		r.m.News(store.EveryWait)
	case 1:
		r.hint(w.drawKey())
	case 2:
		r.st.polls(rapid.Bool().Draw(w.t, "polls"))
	case 3:
		r.st.losesRecalls(rapid.Bool().Draw(w.t, "loses"))
	case 4:
		r.st.hears(rapid.Bool().Draw(w.t, "hears"))
	}
}

func (w *world) sleep() {
	ms := rapid.SampledFrom([]int{1, 10, 100, 450, 1000, 5000, 15000}).Draw(w.t, "sleep")
	time.Sleep(time.Duration(ms)*time.Millisecond + rand.N(time.Millisecond))
	synctest.Wait()
}

// standStill stops or suspends a sidecar for a while.
func (w *world) standStill() {
	clk := w.side[w.drawSide()].clk
	d := time.Duration(rapid.SampledFrom([]int{40, 400, 20000}).Draw(w.t, "ms")) * time.Millisecond
	if rapid.Bool().Draw(w.t, "suspended") {
		clk.suspended.Add(int64(d))
	} else {
		clk.stop(d)
	}
}

func (w *world) stop() {
	for _, p := range w.calls {
		p.cancel()
	}
	for _, r := range w.side {
		r.m.Stop()
	}
}

// end ends all calls and sessions, waits until the world is settled, and checks that nothing is
// left.
func (w *world) end() {
	for _, r := range w.side {
		r.st.lift(everyOp...)
		r.st.lockRows()
	}
	for _, m := range w.sessions {
		m.s.End(types.EndDropped)
	}
	for _, p := range w.calls {
		p.cancel()
	}
	w.wg.Wait()
	time.Sleep(2 * time.Minute) // bind:ttl locks end, withdrawals and releases settle
	for i, r := range w.side {
		if n := r.m.acquirer.KeptKeys(); n != 0 {
			w.t.Errorf("%d keys are still kept", n)
		}
		r.nothingRemembered()
		r.nothingStored()
		r.counts.told(int(w.asked[i].Load()))
	}
	w.open.none(w.t)
}

func TestProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(*testing.T) { // a bubble for each run
			w := newWorld(rt)
			defer func() {
				failed = recover() // rapid stops a run by a panic
				w.stop()
			}()
			for range rapid.IntRange(10, 150).Draw(rt, "steps") {
				w.act()
			}
			w.end()
		})
		if failed != nil {
			panic(failed)
		}
	})
}
