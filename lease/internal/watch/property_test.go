package watch

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
)

// world is a key to which things happen, and pushes that are on their way.
type world struct {
	*rapid.T
	b       *bench
	pushes  []store.Event
	readers []*reader
	past    []store.Lock // states to which a failover may go back
	back    bool         // it did: what is forgotten may be told again
	late    bool         // the holder is expired, and may still be renewed
}

func (w *world) pick(n int, what string) int { return rapid.IntRange(0, n-1).Draw(w.T, what) }

// happens changes the key, and sends a push.
func (w *world) happens(kind store.EventKind) {
	lock := w.b.lock
	w.past = append(w.past, lock)
	e := store.Event{Kind: kind, Key: "k"}
	switch kind {
	case acquired:
		highest := lock.Token
		for _, p := range w.past {
			highest = max(highest, p.Token)
		}
		lock = held(highest + 1)
	case stopping:
		lock.Stopping = &store.Stopping{Reason: new(strconv.Itoa(w.pick(2, "reason")))}
		e.Stopping = lock.Stopping
	case released, expired:
		lock = store.Lock{Token: lock.Token, Expired: kind == expired}
		e.Result = strconv.AppendInt(nil, lock.Token, 10)
	}
	e.Token = lock.Token
	w.late = false
	w.b.is(lock)
	w.pushes = append(w.pushes, e)
}

func (w *world) act() {
	switch lock := w.b.lock; w.pick(9, "action") {
	case 0:
		if len(w.readers) < 5 {
			w.readers = append(w.readers, w.b.open())
		}
	case 1:
		if len(w.readers) > 0 {
			i := w.pick(len(w.readers), "reader")
			w.readers[i].Close()
			w.readers = slices.Delete(w.readers, i, i+1)
		}
	case 2, 3, 4:
		kinds := []store.EventKind{acquired}
		if lock.Held {
			kinds = []store.EventKind{released, expired, stopping}
		}
		w.happens(kinds[w.pick(len(kinds), "kind")])
	case 5: // an expired holder is not gone yet: no push
		switch {
		case lock.Held:
			w.b.is(store.Lock{Token: lock.Token, Expired: true})
		case w.late:
			w.b.is(held(lock.Token))
		}
		w.late = lock.Held
	case 6: // a push arrives, perhaps not the oldest, perhaps not for the last time
		if len(w.pushes) > 0 {
			i := w.pick(len(w.pushes), "push")
			w.b.ws.Receive(w.pushes[i])
			if !rapid.Bool().Draw(w.T, "again") {
				w.pushes = slices.Delete(w.pushes, i, i+1)
			}
		}
	case 7:
		w.b.change(func() { w.b.takes = time.Duration(w.pick(3, "takes")) * settle / 2 })
		w.b.ws.Recheck()
	case 8:
		if len(w.past) > 0 && w.pick(4, "failover") == 0 {
			w.b.is(w.past[w.pick(len(w.past), "past")])
			w.back, w.late = true, false
		}
		w.b.change(func() { w.b.lost = true })
		w.b.ws.LeaseEnded()
	}
	if rapid.Bool().Draw(w.T, "wait") {
		time.Sleep(time.Duration(w.pick(4, "for")) * settle / 2)
		synctest.Wait()
	}
}

func kinds(r *reader) (all []string) {
	for _, e := range r.events() {
		all = append(all, fmt.Sprint(e.Kind, " ", e.Lock.Token, " ", string(e.Result)))
	}
	return all
}

// judge lets the rest of the pushes be lost. Then each stream shows the key's state, and
// was told what makes sense.
func (w *world) judge() {
	time.Sleep(20 * time.Second)
	synctest.Wait()
	truth := w.b.lock
	for _, r := range w.readers {
		begin, err := r.State()
		if err != nil {
			w.Fatalf("%v", err)
		}
		shown, ends := begin, map[string]bool{}
		for _, e := range r.events() {
			switch {
			case e.Kind == acquired:
				shown = e.Lock
				shown.Held = true
				continue
			case !shown.Held:
				w.Fatalf("told %d of a free key: %v", e.Kind, kinds(r))
			case e.Kind == stopping:
				shown.Stopping = e.Stopping
				continue
			case e.Result != nil && ends[string(e.Result)] && !w.back:
				w.Fatalf("told the end of %s twice: %v", e.Result, kinds(r))
			}
			if shown.Token != 0 && e.Result != nil && string(e.Result) != strconv.FormatInt(shown.Token, 10) {
				w.Fatalf("told that %d ended with the result of %s", shown.Token, e.Result)
			}
			ends[string(e.Result)] = true
			shown = store.Lock{}
		}
		if shown.Held != truth.Held || truth.Held && shown.Token != truth.Token {
			w.Fatalf("shows %+v, it is %+v: %v", shown, truth, kinds(r))
		}
		if s := truth.Stopping; s != nil && (shown.Stopping == nil || *shown.Stopping.Reason != *s.Reason) {
			w.Fatalf("shows %+v, it is asked to stop: %s", shown, *s.Reason)
		}
	}
}

// Each stream comes to the key's true state, and is told each end at most once, with the
// result of its own grant, even if pushes are lost, late, repeated or overtaken.
// Proves: promise 16
func TestStreamsConverge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(*testing.T) {
			b, stop := newBench(rt)
			w := &world{T: rt, b: b}
			defer func() {
				failed = recover() // rapid stops a run by a panic
				stop()
			}()
			for range rapid.IntRange(5, 50).Draw(rt, "steps") {
				w.act()
			}
			w.judge()
		})
		if failed != nil {
			panic(failed)
		}
	})
}
