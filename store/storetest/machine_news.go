package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// modelEar collects the news of an instance.
type modelEar struct {
	mu     sync.Mutex
	news   []store.News // about waiters
	events []store.Event
	// recalls are the keys to be given up.
	recalls []string
}

func (e *modelEar) hear(n store.News) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case n.Recall:
		e.recalls = append(e.recalls, n.Key)
	case n.Event != nil:
		e.events = append(e.events, *n.Event)
	case n.ID != store.AttemptID{}:
		e.news = append(e.news, n)
	}
}

// has returns news about a waiter with this outcome, or a hint to check the waiter.
func (e *modelEar) has(id store.AttemptID, outcome store.Outcome) (n store.News, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.IndexFunc(e.news, func(n store.News) bool { return n.ID == id && n.Answer.Outcome == outcome }); i >= 0 {
		return e.news[i], true
	}
	i := slices.IndexFunc(e.news, func(n store.News) bool {
		return n.IsHint() && store.HalfOf(n.ID) == store.HalfOf(id)
	})
	if i < 0 {
		return store.News{}, false
	}
	return e.news[i], true
}

// deaf reports whether the store sends no news about what other instances did.
func (m *machine) deaf() bool {
	return slices.ContainsFunc(m.stores, func(s engine) bool { return s.Traits().Polls })
}

// exact reports whether the store sends each item of news at once, complete, and only once.
func (m *machine) exact() bool { return m.stores[0].Traits().Inline }

// listen compares the news with the news that the model expects.
func (m *machine) listen(t *rapid.T) {
	told := 0
	m.findPassed(t)
	m.model.hintAll()
	wanted := slices.ContainsFunc(m.model.hinted, func(w modelAsker) bool { return w.ID == m.asked })
	for i := range m.ears {
		m.ears[i].dropNeedlessHints(func(id store.AttemptID) bool { return id == m.asked && id != (store.AttemptID{}) && !wanted })
	}
	m.asked = store.AttemptID{}
	for outcome, wanted := range map[store.Outcome][]modelAsker{
		store.Granted: m.model.handedOff, store.Skipped: m.model.skipped, 0: m.model.hinted,
	} {
		for _, w := range wanted {
			m.told(t, w, outcome)
		}
		told += len(wanted)
	}
	m.model.handedOff, m.model.skipped, m.model.hinted = nil, nil, nil
	m.hearRecalls(t)
	for i := range m.ears {
		m.nothingElse(t, &m.ears[i], &told)
		m.hearEvents(t, i)
	}
	if m.exact() && told != 0 {
		t.Fatalf("the number of news items differs by %d", told)
	}
	m.model.events = nil
	clear(m.model.unsure)
}

// findPassed looks at the keys that are due: see [model.due]. An operation of a store that is not exact may hand these
// on beside what it has to do. If it did so, all else is as after every hand-off.
func (m *machine) findPassed(t *rapid.T) {
	if m.exact() || !slices.ContainsFunc(modelKeys, func(key string) bool { return m.model.due(m.model.lock(key)) }) {
		return
	}
	locks, err := m.stores[0].Get(m.ctx, modelKeys)
	must(t, err)
	for i, key := range modelKeys {
		if k := m.model.lock(key); m.model.due(k) && locks[i].QueueLength < len(k.line) {
			m.model.passDue(k)
		}
	}
}

// told waits for the outcome of a waiter or for a hint. After a hint, told checks the waiter.
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
		t.Fatalf("news %+v about %+v, want %s", n, w, name(outcome))
	}
	answer := n.Answer
	if answer.Outcome == 0 {
		answers, err := m.stores[w.by].Check(m.ctx, []store.Attempt{w.Attempt})
		must(t, err)
		answer = answers[0]
	} else if n.ID != w.ID || n.Key != "" && (n.Key != w.Key || n.Lease != w.Lease) {
		t.Fatalf("news %+v about %+v", n, w)
	}
	if outcome == store.Granted && answer.Outcome == store.Granted {
		m.learn(t, m.model.lock(w.Key), w.ID, answer)
	}
	if outcome == store.Skipped && answer.Outcome == store.Gone && m.model.leases[w.Lease].dead && !m.exact() {
		return // the same operation reaped the lease, and the store forgot the waiter
	}
	m.judge(t, w.Attempt, answer, outcome)
	if outcome == store.Skipped && string(answer.Result) != m.model.results[w.ID] {
		t.Fatalf("news of a skip: %+v, want the result %q", answer, m.model.results[w.ID])
	}
	ear.mark(w.ID, outcome)
}

// dropNeedlessHints drops harmless hints: those to waiters that already have a hint or an outcome, or that have just asked.
// An ask that reaps another waiter causes a visit, which sees the asker in the queue, too.
func (e *modelEar) dropNeedlessHints(justAsked func(store.AttemptID) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	told := map[store.AttemptID]bool{}
	for _, n := range e.news {
		told[n.ID] = told[n.ID] || n.Answer.Outcome != 0
	}
	e.news = slices.DeleteFunc(e.news, func(n store.News) bool {
		needless := n.IsHint() && (told[n.ID] || justAsked(n.ID))
		told[n.ID] = true
		return needless
	})
}

// mark notes that news of this outcome was expected.
func (e *modelEar) mark(id store.AttemptID, outcome store.Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.news {
		if e.news[i].ID == id && e.news[i].Answer.Outcome == outcome {
			e.news[i].Answer.Outcome = 0
			return
		}
	}
}

// nothingElse fails if there is news of a grant or a skip that did not happen. A hint is harmless.
// A repeated grant is harmless too, even after its end, because a repeated release reports it
// again. told is reduced by the number of news items.
func (m *machine) nothingElse(t *rapid.T, e *modelEar, told *int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.news {
		again := n.Answer.Outcome == store.Granted && m.model.granted[modelGrant{n.ID, n.Answer.Token}]
		if n.Answer.Outcome != 0 && (m.exact() || !again) {
			t.Fatalf("unexpected news %+v", n)
		}
	}
	*told -= len(e.news)
	e.news = nil
}

// hearEvents waits for all expected events of watched keys. An expiry is reported when an operation
// finds it, if the key is watched then.
func (m *machine) hearEvents(t *rapid.T, by int) {
	if m.deaf() {
		return // the store sends only an instance's own events
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
				t.Fatalf("instance %d was notified of %+v, which did not happen or was reported before: %+v, lease %+v", by, e, k, k.lease)
			}
			delete(k.expired[by], e.Token)
		}
		ear.events = nil
		return len(heard) >= len(wanted)
	})
	// The order of events of different keys is free.
	for _, events := range [][]store.Event{heard, wanted} {
		slices.SortStableFunc(events, func(a, b store.Event) int { return int(a.Key[0]) - int(b.Key[0]) })
	}
	if !slices.EqualFunc(heard, wanted, sameEvent) {
		t.Fatalf("instance %d was notified of %+v\nwant %+v", by, heard, wanted)
	}
}

// unsure reports whether an instance may miss events of a key.
func (m *machine) unsure(by int, key string) bool {
	w := modelWatch{by, key}
	return m.model.unsure[w] || m.model.lapsed[w] && !m.exact()
}

// late reports whether an event happened before the instance watched, and may still arrive.
func (m *machine) late(by int, e store.Event) bool {
	return !m.exact() && m.model.lock(e.Key).since[by].has(e)
}

// mayKeepQuiet reports whether the event repeats a stop with another reason. A store that is not
// exact need not report each of these.
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
