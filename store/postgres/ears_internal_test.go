package postgres

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// twoEars are those of two views, for which a connection listens that has not heard itself yet.
func twoEars(t *testing.T) (e *listener, a, b *ear) {
	t.Helper()
	s, err := NewSpace(Config{URL: "postgres://nobody@localhost/nothing"})
	if err != nil {
		t.Fatal(err)
	}
	e = s.listener
	ears := make([]*ear, 2)
	for i, name := range []string{"a", "b"} {
		view := s.open(store.Identity{Namespace: "n", Instance: name})
		view.phase = phaseStarted
		ears[i] = view.ear
		e.join(view.ear)
		e.turn(view.ear, true)
		e.tuned[view.ear.channel] = view.ear
		view.ear.letGo()
	}
	return e, ears[0], ears[1]
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A view that needs no news for a moment, in which the listener does nothing, goes on as before: its next calls do not wait for a LISTEN that is there.
func TestAnEarThatIsOffForAMomentWaitsForNothing(t *testing.T) {
	e, a, _ := twoEars(t)
	e.turn(a, false)
	e.turn(a, true)
	if !isClosed(a.tried) {
		t.Error("the view waits for a LISTEN that nobody sends, because the connection listens already")
	}
}

// If its connection was about to end, because nobody needed it for that moment, the view waits for the next one.
func TestAnEarThatIsOnAgainWaitsForTheNextConnection(t *testing.T) {
	e, a, b := twoEars(t)
	if _, off := e.begin(t.Context()); off != nil {
		t.Fatal("the store is not usable")
	}
	ended := make(chan error, 1)
	e.off = func(why error) { ended <- why }
	e.turn(a, false)
	e.turn(b, false)
	if err := <-ended; !errors.Is(err, errListenOff) {
		t.Fatalf("the connection ends because %v", err)
	}
	e.turn(a, true)
	if isClosed(a.tried) {
		t.Error("the view relies on a connection that is ending")
	}
	e.deafen()
	if isClosed(a.tried) {
		t.Error("the end of the connection before counts as a try of the next one")
	}
}

// If that moment is the one in which notifications are known to arrive, the view hears nevertheless.
func TestAnEarThatIsOffAtTheHelloHears(t *testing.T) {
	e, a, b := twoEars(t)
	e.turn(a, false)
	e.hello = "hello-" + uuid.NewString()
	e.hear(b.channel, "look:"+uuid.NewString()[:18]+" "+e.hello)
	e.turn(a, true)
	if !a.hearing.Load() || !b.hearing.Load() {
		t.Errorf("the views hear: %v, %v", a.hearing.Load(), b.hearing.Load())
	}
}

// A view that has ended hears nothing more, though the connection still listens for it.
func TestAnEarOfAnEndedViewIsDeaf(t *testing.T) {
	e, a, b := twoEars(t)
	var told []store.News
	a.view.news = func(n store.News) { told = append(told, n) }
	e.part(a)
	e.hello = "hello-" + uuid.NewString()
	e.hear(b.channel, e.hello)
	if a.hearing.Load() || len(told) > 0 {
		t.Errorf("it hears: %v, and was told %v", a.hearing.Load(), told)
	}
	if e.isTuned() {
		t.Error("the connection listens for the view that has ended, and nobody would end that")
	}
}

// Releases of several views that a crash may have forgotten are repeated for each view, whatever becomes of those of another.
func TestDoubtfulReleasesAreOfTheirViews(t *testing.T) {
	e, a, b := twoEars(t)
	u := e.s.unflushed
	for i := range 3 * resendMax {
		u.doubtful[releasedBy{a.view, uuid.NewString()}] = store.Claim{Token: int64(i)}
	}
	u.doubtful[releasedBy{b.view, "k"}] = store.Claim{Key: "k"}
	found := u.someDoubtful()
	if len(found[a.view]) != resendMax || len(found[b.view]) != 1 {
		t.Errorf("%d of the one, %d of the other; want %d and 1", len(found[a.view]), len(found[b.view]), resendMax)
	}
	u.forget(a.view)
	if found := u.someDoubtful(); len(found) != 1 || len(found[b.view]) != 1 {
		t.Errorf("after the end of a view: %v", found)
	}
}
