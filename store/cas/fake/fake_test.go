package fake_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a started backend, and what it was told.
type client struct {
	*testing.T
	*fake.Backend
	server *fake.Server

	mu      sync.Mutex
	letters []cas.Letter
	lost    int
}

func (c *client) deliver(l cas.Letter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.letters = append(c.letters, l)
}

func (c *client) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost++
}

// heard returns what the client was told, after all that is to come now.
func (c *client) heard() (letters []cas.Letter, lost int) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.letters), c.lost
}

// bubble runs a test in virtual time, on a server with these faults.
func bubble(t *testing.T, faults fake.Faults, test func(*client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		c := &client{T: t, server: server, Backend: server.Open("me", faults)}
		if err := c.Start(t.Context(), c.deliver, c.lose); err != nil {
			t.Fatal(err)
		}
		defer c.Stop()
		test(c)
	})
}

func (c *client) load(key string) cas.Record {
	c.Helper()
	records, _, err := c.Load(c.Context(), []string{key}, nil)
	if err != nil {
		c.Fatal(err)
	}
	return records[0]
}

// swap replaces a record, and returns whether that is said to be done.
func (c *client) swap(w cas.Swap) cas.Swapped {
	c.Helper()
	done, err := c.Swap(c.Context(), []cas.Swap{w})
	if err != nil {
		c.Fatal(err)
	}
	return done[0]
}

func (c *client) open(ttl time.Duration) store.LeaseID {
	c.Helper()
	id := uuid.New()
	if _, err := c.OpenLeases(c.Context(), []cas.NewLease{{NewLease: store.NewLease{ID: id, TTL: ttl}, Instance: "me"}}); err != nil {
		c.Fatal(err)
	}
	return id
}

func (c *client) alive(id store.LeaseID) cas.LeaseState {
	c.Helper()
	_, states, err := c.Load(c.Context(), nil, []store.LeaseID{id})
	if err != nil {
		c.Fatal(err)
	}
	return states[0]
}

func text(s string) []byte { return []byte(s) }

func TestSwapNeedsTheVersionAndLivingLeases(t *testing.T) {
	bubble(t, fake.Faults{}, func(c *client) {
		lease := c.open(time.Minute)
		first := c.swap(cas.Swap{Key: "k", Data: text("1"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 5})
		if !first.Done || first.Record.Version == 0 || first.Record.Base == 0 {
			c.Fatalf("the first swap: %+v", first)
		}
		if again := c.swap(cas.Swap{Key: "k", Data: text("2")}); again.Done || string(again.Record.Data) != "1" || !again.Record.States[0].Alive {
			c.Fatalf("a swap of a missing record that exists: %+v", again)
		}
		if err := c.Revoke(c.Context(), []store.LeaseID{lease}); err != nil {
			c.Fatal(err)
		}
		if dead := c.swap(cas.Swap{Key: "k", Version: first.Record.Version, Living: []store.LeaseID{lease}}); dead.Done || dead.Record.Version != first.Record.Version {
			c.Fatalf("a swap under a dead lease: %+v", dead)
		}
		gone := c.swap(cas.Swap{Key: "k", Version: first.Record.Version, Delete: true})
		if !gone.Done || c.load("k").Version != 0 {
			c.Fatalf("deleted: %+v", gone)
		}
		if next := c.swap(cas.Swap{Key: "k", Data: text("3")}); next.Record.Base < first.Record.Base+5 {
			c.Fatalf("a token base of %d after %d", next.Record.Base, first.Record.Base)
		}
	})
}

func TestLeasesEndExactly(t *testing.T) {
	bubble(t, fake.Faults{}, func(c *client) {
		lease := c.open(time.Second)
		time.Sleep(time.Second - 1)
		if s := c.alive(lease); !s.Alive || s.Left != 1 {
			c.Fatalf("at the last moment: %+v", s)
		}
		if renewed, _, _ := c.Renew(c.Context(), []store.LeaseID{lease, uuid.New()}); !slices.Equal(renewed, []store.LeaseID{lease}) {
			c.Fatalf("renewed %v", renewed)
		}
		time.Sleep(time.Second)
		if renewed, _, _ := c.Renew(c.Context(), []store.LeaseID{lease}); len(renewed) != 0 || c.alive(lease).Alive {
			c.Fatal("an expired lease was renewed")
		}
		if found, _ := c.Opened(c.Context(), "me"); len(found) != 0 {
			c.Fatalf("opened: %v", found)
		}
	})
}

func TestLettersOfACarriedOutSwapArrive(t *testing.T) {
	bubble(t, fake.Faults{}, func(c *client) {
		letter := []cas.Letter{{To: "me", Key: "k", Body: text("x")}, {To: "nobody", Key: "k"}}
		first := c.swap(cas.Swap{Key: "k", Letters: letter})
		c.swap(cas.Swap{Key: "k", Letters: letter}) // the version is wrong
		letters, _ := c.heard()
		if len(letters) != 1 || letters[0].Base != first.Record.Base || string(letters[0].Body) != "x" {
			c.Fatalf("delivered: %+v", letters)
		}
	})
}

func TestALostLetterIsReported(t *testing.T) {
	faults := fake.Faults{Letter: func() fake.LetterFault { return fake.LetterFault{Lost: true, Told: time.Second} }}
	bubble(t, faults, func(c *client) {
		c.swap(cas.Swap{Key: "k", Letters: []cas.Letter{{To: "me", Key: "k"}}})
		if _, lost := c.heard(); lost != 0 {
			c.Fatal("reported at once")
		}
		time.Sleep(2 * time.Second)
		if letters, lost := c.heard(); lost != 1 || len(letters) != 0 {
			c.Fatalf("lost %d, delivered %v", lost, letters)
		}
	})
}

func TestScanReadsPagesInTheOrderOfTheKeys(t *testing.T) {
	bubble(t, fake.Faults{}, func(c *client) {
		for key := range strings.SplitSeq("a/2 b/1 a/1 a/3", " ") {
			c.swap(cas.Swap{Key: key})
		}
		var keys []string
		for after := ""; ; {
			page, err := c.Scan(c.Context(), "a/", after, 2)
			if err != nil {
				c.Fatal(err)
			}
			for _, r := range page {
				keys, after = append(keys, r.Key), r.Key
			}
			if len(page) < 2 {
				break
			}
		}
		if !slices.Equal(keys, []string{"a/1", "a/2", "a/3"}) {
			c.Fatalf("scanned %v", keys)
		}
	})
}

// TestFaults: each fault of a request, what the client hears, and what the server has before and after a while.
func TestFaults(t *testing.T) {
	cases := map[string]struct {
		fault               fake.Fault
		limit               time.Duration
		unknown, fails      bool
		before, afterSecond string
	}{
		"refused":                            {fake.Fault{Refused: true}, time.Hour, false, true, "", ""},
		"the answer is lost":                 {fake.Fault{Lost: true}, time.Hour, true, true, "x", "x"},
		"the request is lost":                {fake.Fault{Lost: true, Late: -1}, time.Hour, true, true, "", ""},
		"the request is late":                {fake.Fault{Lost: true, Late: time.Second}, time.Hour, true, true, "", "x"},
		"the request is slow":                {fake.Fault{Slow: time.Second}, time.Hour, false, false, "x", "x"},
		"slow, and the client gives up":      {fake.Fault{Slow: time.Second}, time.Millisecond, true, true, "", "x"},
		"slow answer, and the client leaves": {fake.Fault{SlowAnswer: time.Second}, time.Millisecond, true, true, "x", "x"},
	}
	for name, is := range cases {
		t.Run(name, func(t *testing.T) {
			faults := fake.Faults{Request: func(op string) fake.Fault {
				if op == "Swap" {
					return is.fault
				}
				return fake.Fault{}
			}}
			bubble(t, faults, func(c *client) {
				ctx, cancel := context.WithTimeout(c.Context(), is.limit)
				defer cancel()
				_, err := c.Swap(ctx, []cas.Swap{{Key: "k", Data: text("x")}})
				if (err != nil) != is.fails || store.OutcomeUnknown(err) != is.unknown || is.fails && !store.Unavailable(err) {
					c.Errorf("the client hears: %v", err)
				}
				if got := string(c.load("k").Data); got != is.before {
					c.Errorf("the server has %q at once, want %q", got, is.before)
				}
				time.Sleep(2 * time.Second)
				if got := string(c.load("k").Data); got != is.afterSecond {
					c.Errorf("the server has %q later, want %q", got, is.afterSecond)
				}
			})
		})
	}
}

// server opens backends that do not fail.
type server struct{ *fake.Server }

func (s server) Connect() cas.Server { return s.Process(fake.Faults{}) }

// link is a connection that a test breaks.
type link struct{ fault atomic.Pointer[fake.Fault] }

func (l *link) Cut()  { l.fault.Store(&fake.Fault{Refused: true}) }
func (l *link) Mute() { l.fault.Store(&fake.Fault{Lost: true}) }
func (l *link) Hold() { l.fault.Store(&fake.Fault{Lost: true, Late: 200 * time.Millisecond}) }
func (l *link) Mend() { l.fault.Store(&fake.Fault{}) }

// far opens backends behind a link.
type far struct {
	server
	link *link
}

func (f far) Connect() cas.Server {
	return f.Process(fake.Faults{
		Request: func(string) fake.Fault { return *f.link.fault.Load() },
		Deaf:    func() bool { return *f.link.fault.Load() != fake.Fault{} },
	})
}

func (s server) Behind() (castest.Server, castest.Faults) {
	l := &link{}
	l.Mend()
	return far{s, l}, l
}

func TestFaultyConnections(t *testing.T) {
	castest.RunFaulty(t, func(*testing.T) castest.Faulty { return server{fake.NewServer()} })
}

func (s server) FailOver(_ *testing.T, forgotten func()) {
	before := s.Copy()
	forgotten()
	s.Server.FailOver(before, 3*time.Second)
}

func TestHistories(t *testing.T) {
	castest.RunForgetful(t, func(*testing.T) castest.Forgetful { return server{fake.NewServer()} })
}

func TestBackend(t *testing.T) {
	castest.Run(t, func(*testing.T) castest.Server { return server{fake.NewServer()} })
}

func TestAFailOverForgets(t *testing.T) {
	bubble(t, fake.Faults{}, func(c *client) {
		kept := c.open(time.Minute)
		first := c.swap(cas.Swap{Key: "k", Data: text("1"), Tokens: 1}).Record
		before := c.server.Copy()
		history, forgotten := c.load("k").History, c.open(time.Minute)
		second := c.swap(cas.Swap{Key: "k", Version: first.Version, Data: text("2"), Tokens: 1}).Record
		c.server.FailOver(before, time.Second)
		if r := c.load("k"); string(r.Data) != "1" || r.History == history || c.alive(forgotten).Alive || !c.alive(kept).Alive {
			c.Fatalf("after the failover: %+v", r)
		}
		if refused := c.swap(cas.Swap{Key: "k", Version: first.Version, Tokens: 1}); refused.Done || refused.Quiet != time.Second || refused.Record.Version != first.Version {
			c.Fatalf("in the quiet time: %+v", refused)
		}
		if quiet := c.swap(cas.Swap{Key: "k", Version: first.Version}); !quiet.Done || quiet.Record.Version <= second.Version {
			c.Fatalf("a swap without tokens: %+v after the version %d", quiet, second.Version)
		}
		time.Sleep(time.Second)
		if next := c.swap(cas.Swap{Key: "new", Tokens: 1}); !next.Done || next.Record.Base <= second.Base {
			c.Fatalf("after the quiet time: %+v after the token %d", next, second.Base)
		}
	})
}
