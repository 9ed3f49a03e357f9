package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// modelEar keeps what an instance was told.
type modelEar struct {
	mu     sync.Mutex
	news   []store.News // of waiters
	events []store.Event
}

func (e *modelEar) hear(n store.News) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case n.Event != nil:
		e.events = append(e.events, *n.Event)
	case n.ID != store.AttemptID{}:
		e.news = append(e.news, n)
	}
}

// has reports whether a waiter was told something: what it wants to know, or to look.
func (e *modelEar) has(grant store.AttemptID, outcome store.Outcome) (n store.News, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.IndexFunc(e.news, func(n store.News) bool { return n.ID == grant && n.Answer.Outcome == outcome }); i >= 0 {
		return e.news[i], true
	}
	i := slices.IndexFunc(e.news, func(n store.News) bool {
		return n.Answer.Outcome == 0 && store.HalfOf(n.ID) == store.HalfOf(grant)
	})
	if i < 0 {
		return store.News{}, false
	}
	return e.news[i], true
}

// deaf: news of other instances does not arrive by itself.
func (m *machine) deaf() bool {
	return slices.ContainsFunc(m.stores, func(s engine) bool { return s.Traits().Polls })
}

// exact: all that is told is told at once, whole, and nothing else.
func (m *machine) exact() bool { return m.stores[0].Traits().Inline }

// listen compares the news with what must have been told.
func (m *machine) listen(t *rapid.T) {
	told := 0
	m.model.hintAll()
	for i := range m.ears {
		m.ears[i].dropNeedlessHints()
	}
	for outcome, wanted := range map[store.Outcome][]modelAsker{
		store.Granted: m.model.handedOff, store.Skipped: m.model.skipped, 0: m.model.hinted,
	} {
		for _, w := range wanted {
			m.told(t, w, outcome)
		}
		told += len(wanted)
	}
	m.model.handedOff, m.model.skipped, m.model.hinted = nil, nil, nil
	for i := range m.ears {
		m.nothingElse(t, &m.ears[i], &told)
		m.hearEvents(t, i)
	}
	if m.exact() && told != 0 {
		t.Fatalf("%d news that were heard together", told)
	}
	m.model.events = nil
	clear(m.model.unsure)
}

// told waits until a waiter was told something, and looks where it was told to.
func (m *machine) told(t *rapid.T, w modelAsker, outcome store.Outcome) {
	ear := &m.ears[w.by]
	n, heard := ear.has(w.ID, outcome)
	if !heard && !m.deaf() {
		m.until(t, "news of "+w.ID.String(), func() bool { n, heard = ear.has(w.ID, outcome); return heard })
	}
	if outcome == 0 {
		return
	}
	if m.exact() && n.Answer.Outcome != outcome {
		t.Fatalf("heard %+v of %+v, want %s", n, w, name(outcome))
	}
	answer := n.Answer
	if answer.Outcome == 0 {
		answers, err := m.stores[w.by].Check(m.ctx, []store.Attempt{w.Attempt})
		must(t, err)
		answer = answers[0]
	} else if n.ID != w.ID || n.Key != "" && (n.Key != w.Key || n.Lease != w.Lease) {
		t.Fatalf("heard %+v of %+v", n, w)
	}
	if outcome == store.Granted && answer.Outcome == store.Granted {
		m.learn(t, m.model.lock(w.Key), w.ID, answer)
	}
	if outcome == store.Skipped && answer.Outcome == store.Gone && m.model.leases[w.Lease].dead && !m.exact() {
		return // it was forgotten with its lease, which the same operation reaped
	}
	m.judge(t, w.Attempt, answer, outcome)
	if outcome == store.Skipped && string(answer.Result) != m.model.results[w.ID] {
		t.Fatalf("heard of a skip: %+v, want the result %q", answer, m.model.results[w.ID])
	}
	ear.mark(w.ID, outcome)
}

// dropNeedlessHints forgets that a waiter was told to look which was told to look before, or of its
// grant. That is no harm.
func (e *modelEar) dropNeedlessHints() {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := map[store.AttemptID]bool{}
	for _, n := range e.news {
		told[n.ID] = told[n.ID] || n.Answer.Outcome != 0
	}
	e.news = slices.DeleteFunc(e.news, func(n store.News) bool {
		needless := n.Answer.Outcome == 0 && told[n.ID]
		told[n.ID] = true
		return needless
	})
}

// mark notes that it was right to tell a waiter of an outcome.
func (e *modelEar) mark(grant store.AttemptID, outcome store.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.news {
		if e.news[i].ID == grant && e.news[i].Answer.Outcome == outcome {
			e.news[i].Answer.Outcome = 0
			return
		}
	}
}

// nothingElse finds out whether anybody was told of a grant or a skip that there was
// not. To be told to look is no harm; nor to be told of a grant again, even when it is
// over, which a release that finds it does, for it may be a repeat of the one that handed
// the lock over. told is lowered by how many news there were.
func (m *machine) nothingElse(t *rapid.T, e *modelEar, told *int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.news {
		again := n.Answer.Outcome == store.Granted && m.model.granted[modelGrant{n.ID, n.Answer.Token}]
		if n.Answer.Outcome != 0 && (m.exact() || !again) {
			t.Fatalf("heard %+v", n)
		}
	}
	*told -= len(e.news)
	e.news = nil
}

// hearEvents waits until an instance has heard what must be heard of watched keys. The end
// of a lease is told when somebody finds it, if it is found while the key is watched.
func (m *machine) hearEvents(t *rapid.T, by int) {
	if m.deaf() {
		return // own events come by themselves, those of others do not
	}
	var wanted []store.Event
	for _, e := range m.model.events {
		e.Token = e.of.token
		if e.by != by || m.unsure(by, e.Key) || m.mayKeepQuiet(e.Event) {
			continue
		}
		wanted = append(wanted, e.Event)
	}
	var heard []store.Event
	ear := &m.ears[by]
	m.until(t, fmt.Sprintf("instance %d hears %+v", by, wanted), func() bool {
		ear.mu.Lock()
		defer ear.mu.Unlock()
		for _, e := range ear.events {
			if e.Kind != store.EventExpired {
				if !m.unsure(by, e.Key) && !m.late(by, e) && !m.mayKeepQuiet(e) {
					heard = append(heard, e)
				}
				continue
			}
			k := m.model.lock(e.Key)
			if !k.expired[by][e.Token] {
				t.Fatalf("instance %d heard %+v, which did not happen, or was told before: %+v, lease %+v", by, e, k, k.lease)
			}
			delete(k.expired[by], e.Token)
		}
		ear.events = nil
		return len(heard) >= len(wanted)
	})
	// Of different keys they may come in any order.
	for _, events := range [][]store.Event{heard, wanted} {
		slices.SortStableFunc(events, func(a, b store.Event) int { return int(a.Key[0]) - int(b.Key[0]) })
	}
	if !slices.EqualFunc(heard, wanted, sameEvent) {
		t.Fatalf("instance %d heard %+v\nwant %+v", by, heard, wanted)
	}
}

// unsure: an instance may hear of a key, or not.
func (m *machine) unsure(by int, key string) bool {
	w := modelWatch{by, key}
	return m.model.unsure[w] || m.model.lapsed[w] && !m.exact()
}

// late: it happened before the instance watched, and was told by another after.
func (m *machine) late(by int, e store.Event) bool {
	return !m.exact() && m.model.lock(e.Key).since[by].has(e)
}

// mayKeepQuiet: a holder is asked to stop again, for another reason, than which little is
// easier to ask for. A store that is not exact need not tell each time, nor at once.
func (m *machine) mayKeepQuiet(e store.Event) bool {
	return e.Kind == store.EventStopping && !m.exact() &&
		slices.ContainsFunc(m.model.lock(e.Key).again[e.Token], func(reason *string) bool { return sameReason(reason, e.Stopping.Reason) })
}

func sameEvent(a, b store.Event) bool {
	same := a.Kind == b.Kind && a.Key == b.Key && a.Token == b.Token && a.Outcome == b.Outcome && bytes.Equal(a.Result, b.Result)
	if a.Stopping == nil || b.Stopping == nil {
		return same && a.Stopping == b.Stopping
	}
	return same && sameReason(a.Stopping.Reason, b.Stopping.Reason)
}
