package castest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Faults is a connection to a server that a test breaks. A [github.com/locksidecar/locksidecar/internal/testing/process.Link] is one.
type Faults interface {
	// Cut closes the connection, until Mend.
	Cut()
	// Mute drops answers, until Mend. Requests arrive.
	Mute()
	// Hold keeps requests. They arrive at Mend, also if their client has given up.
	Hold()
	Mend()
}

// Faulty is a [Server] with a connection that a test may break.
type Faulty interface {
	Server
	// Behind returns how to open backends whose connection to the server has these faults. Their operations have a short timeout.
	Behind() (Server, Faults)
}

// RunFaulty tests what becomes of swaps on broken connections: the promises about unknown outcomes, on which the engine rests.
func RunFaulty(t *testing.T, server func(t *testing.T) Faulty) {
	runGroups(t, true, map[string]func(*testing.T, *client){
		"outcomes":         outcomes,
		"answers are lost": answersLost,
		"late swaps":       lateSwaps,
		"no connection":    noConnection,
		"lost letters":     lostLetters,
		"deaf":             deaf,
	}, func(t *testing.T) Server { return server(t) })
}

// lateness is for how long a request that came late may be on its way after Mend.
const lateness = 300 * time.Millisecond

// outcomes: whatever becomes of the connection, an error whose outcome is known means that the swap is not carried out, nor later. An unknown one
// may be carried out, once. An answer tells what was done.
func outcomes(t *testing.T, c *client) {
	server, link := c.server.(Faulty).Behind() //nolint:forcetypeassert // see RunFaulty
	far := open(t, server, "far")
	lease := c.open(ttl, "one")
	far.done(cas.Swap{Key: "ns/warm", Data: []byte("x")})
	seed := rand.Uint64()                    //nolint:gosec // of a test
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // of a test
	faults := []struct {
		name   string
		begins func()
	}{{"cut", link.Cut}, {"mute", link.Mute}, {"hold", link.Hold}}
	known, unknown := map[string]string{}, 0
	for round := range 12 {
		fault := faults[round%len(faults)]
		await.Until(t, "the connection works", func() bool {
			_, err := far.Swap(far.ctx, []cas.Swap{{Key: fmt.Sprintf("ns/try/%d/%d", round, random.Uint64()), Data: []byte("x")}})
			return err == nil
		})
		begun := make(chan struct{})
		go func() { // just before, in, or after the first swap
			time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
			fault.begins()
			close(begun)
		}()
		for i := range 3 {
			name := fmt.Sprintf("ns/%d/%d", round, i)
			_, err := far.Swap(far.ctx, []cas.Swap{{Key: name, Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1}})
			switch {
			case err == nil:
				known[name] = "x"
			case store.OutcomeUnknown(err):
				unknown++
			case store.Unavailable(err):
				known[name] = ""
			default:
				t.Errorf("seed %d, %s %d: %v", seed, fault.name, round, err)
			}
			if i == 0 {
				<-begun
			}
		}
		link.Mend()
	}
	time.Sleep(lateness) // nothing may come any more
	for name, want := range known {
		if got := string(c.load(name).Data); got != want {
			t.Errorf("seed %d: %s has %q, and its outcome was known: %q", seed, name, got, want)
		}
	}
	if unknown == 0 {
		t.Errorf("seed %d: no outcome was unknown", seed)
	}
}

// answersLost: a swap whose answer does not come was carried out, and the caller hears that its outcome is unknown.
func answersLost(t *testing.T, c *client) {
	server, link := c.server.(Faulty).Behind() //nolint:forcetypeassert // see RunFaulty
	far := open(t, server, "far")
	for round := 0; ; round++ {
		name := key(round)
		far.done(cas.Swap{Key: name + "/warm", Data: []byte("x")})
		link.Mute()
		_, err := far.Swap(far.ctx, []cas.Swap{{Key: name, Data: []byte("x")}})
		if err == nil {
			t.Fatal("a swap without an answer succeeded")
		}
		if !store.OutcomeUnknown(err) && c.load(name).Version != 0 {
			t.Fatalf("it was carried out, and said not to be: %v", err)
		}
		carriedOut := c.load(name).Version != 0
		link.Mend()
		await.Until(t, "the connection works", func() bool {
			_, err := far.Swap(far.ctx, []cas.Swap{{Key: fmt.Sprint(name, "/try/", rand.Uint64()), Data: []byte("x")}}) //nolint:gosec // of a test
			return err == nil
		})
		if carriedOut {
			return
		}
		if round == 20 { // a check of the server may have closed the connection before
			t.Fatal("no swap was carried out whose answer was lost")
		}
	}
}

// noConnection: without a connection nothing is sent, and the caller hears that. Once there is one, the backend works again.
func noConnection(t *testing.T, c *client) {
	server, link := c.server.(Faulty).Behind() //nolint:forcetypeassert // see RunFaulty
	far := open(t, server, "far")
	lease := c.open(ttl, "far")
	far.done(cas.Swap{Key: "ns/before", Data: []byte("x")})
	link.Cut()
	swap := []cas.Swap{{Key: "ns/key", Data: []byte("x")}}
	await.Until(t, "the outcome is known", func() bool { // the first swap may meet the end of the connection
		_, err := far.Swap(far.ctx, swap)
		if err == nil {
			t.Fatal("a swap without a connection succeeded")
		}
		return store.Unavailable(err) && !store.OutcomeUnknown(err)
	})
	link.Mend()
	await.Until(t, "a swap is carried out again", func() bool { // of another key: the one that met the end may have been carried out
		done, err := far.Swap(far.ctx, []cas.Swap{{Key: fmt.Sprint("ns/after/", rand.Uint64()), Data: []byte("x")}}) //nolint:gosec // of a test
		return err == nil && done[0].Done
	})
	if renewed, _, err := far.Renew(far.ctx, []store.LeaseID{lease}); err != nil || len(renewed) != 1 {
		t.Errorf("a renewal: %v, %v", renewed, err)
	}
}

// lateSwaps: a swap that arrives after its record has changed does nothing. Withdrawals rely on it.
func lateSwaps(t *testing.T, c *client) {
	server, link := c.server.(Faulty).Behind() //nolint:forcetypeassert // see RunFaulty
	far := open(t, server, "far")
	first := far.done(cas.Swap{Key: "ns/key", Data: []byte("first")})
	link.Hold()
	_, err := far.Swap(far.ctx, []cas.Swap{{Key: "ns/key", Version: first.Version, Data: []byte("late"), Tokens: 1, Letters: []cas.Letter{{To: "one", Key: "ns/key"}}}})
	if err == nil {
		t.Fatal("a swap that was held succeeded")
	}
	second := c.done(cas.Swap{Key: "ns/key", Version: first.Version, Data: []byte("second")})
	link.Mend()
	await.Until(t, "the connection works", func() bool {
		_, err := far.Swap(far.ctx, []cas.Swap{{Key: fmt.Sprint("ns/try/", rand.Uint64()), Data: []byte("x")}}) //nolint:gosec // of a test
		return err == nil
	})
	time.Sleep(lateness)
	if r := c.load("ns/key"); r.Version != second.Version || string(r.Data) != "second" {
		t.Errorf("a late swap was carried out: %+v", r)
	}
	await.Silent(t, c.letters, "letter of a late swap")
}

// deaf: an instance notices that letters do not arrive, and that they do again.
func deaf(t *testing.T, c *client) {
	server, link := c.server.(Faulty).Behind() //nolint:forcetypeassert // see RunFaulty
	far := open(t, server, "far")
	for name, begin := range map[string]func(){"cut": link.Cut, "mute": link.Mute, "hold": link.Hold} {
		far.listens()
		begin()
		await.Until(t, "after a "+name+" it is deaf", func() bool { return !far.hears() })
		link.Mend()
	}
	far.listens()
}

// lostLetters: after its connection was broken, an instance has got what was written to it meanwhile, or is told that it may have lost letters.
func lostLetters(t *testing.T, c *client) {
	server, link := c.server.(Faulty).Behind() //nolint:forcetypeassert // see RunFaulty
	far := open(t, server, "far")
	version := int64(0)
	for round, begin := range []func(){link.Cut, link.Mute, link.Cut} {
		for len(far.lost) > 0 { // of the round before
			<-far.lost
		}
		begin()
		version = c.done(cas.Swap{Key: "ns/key", Version: version, Data: []byte("x"), Letters: []cas.Letter{{To: "far", Key: "ns/key", Body: []byte("hi")}}}).Version
		link.Mend()
		select {
		case <-far.letters:
		case <-far.lost:
		case <-time.After(await.Patience):
			t.Fatalf("round %d: a letter was lost, and nobody was told", round)
		}
	}
}
