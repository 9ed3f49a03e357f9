// Package castest tests that a [cas.Backend] keeps its promises. Each backend runs it on a real server:
//
//	func TestBackend(t *testing.T) { castest.Run(t, func(t *testing.T) castest.Server { … }) }
//	func TestViews(t *testing.T) { castest.RunViews(t, func(t *testing.T) castest.Server { … }) }
//	func TestFaults(t *testing.T) { castest.RunFaulty(t, func(t *testing.T) castest.Faulty { … }) }
//	func TestHistories(t *testing.T) { castest.RunForgetful(t, func(t *testing.T) castest.Forgetful { … }) } // if the server may forget
package castest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Server is a server, or a part of one, that no other test uses.
type Server interface {
	// Connect returns what a process has of it. The test starts and stops it.
	Connect() cas.Server
}

// Only starts a process until the end of the test, and returns its only view, as a sidecar has it.
func Only(t *testing.T, process cas.Server, instance string) cas.Backend {
	t.Helper()
	return started(t, process).View(instance)
}

func started(t *testing.T, process cas.Server) cas.Server {
	t.Helper()
	t.Cleanup(process.Stop)
	if err := process.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return process
}

// ttl is long enough that no lease ends in a test. short is the shortest that all backends support.
const (
	ttl   = time.Minute
	short = 2 * time.Second
)

// Run runs all tests, each on a server of its own. Each instance has a process of its own.
func Run(t *testing.T, server func(t *testing.T) Server) { run(t, true, server) }

// RunInTurn runs one test after the other, for servers that have no parts.
func RunInTurn(t *testing.T, server func(t *testing.T) Server) { run(t, false, server) }

func run(t *testing.T, parallel bool, server func(t *testing.T) Server) {
	runGroups(t, parallel, groups(), server)
}

func groups() map[string]func(*testing.T, *client) {
	return map[string]func(*testing.T, *client){
		"records":                records,
		"swaps stand alone":      swapsStandAlone,
		"one swap of many":       oneOfMany,
		"many swaps":             manySwaps,
		"large records":          largeRecords,
		"the largest swaps":      largestSwaps,
		"binary data":            binaryData,
		"present record":         presentRecord,
		"leases as conditions":   leasesAsConditions,
		"a lease dies meanwhile": leaseDiesMeanwhile,
		"late renewals":          lateRenewals,
		"old versions":           oldVersions,
		"tokens grow":            tokensGrow,
		"tokens of one call":     tokensOfOneCall,
		"random calls":           randomCalls,
		"tokens are raised":      tokensRaised,
		"scan":                   scan,
		"leases":                 leases,
		"a lease ends":           leaseEnds,
		"renewals keep a lease":  renewalsKeep,
		"what is left":           whatIsLeft,
		"opened leases":          openedLeases,
		"letters":                letters,
		"hears":                  hears,
		"a kept key":             keptKey,
		"letters in order":       lettersInOrder,
		"no letter":              noLetter,
		"posted letters":         postedLetters,
		"names":                  names,
		"one wins":               oneWins,
		"lifecycle":              lifecycle,
	}
}

func runGroups(t *testing.T, parallel bool, groups map[string]func(*testing.T, *client), server func(t *testing.T) Server) {
	for name, test := range groups {
		t.Run(name, func(t *testing.T) {
			if parallel {
				t.Parallel()
			}
			test(t, open(t, server(t), "one"))
		})
	}
}

// client is a started backend whose errors end the test.
type client struct {
	cas.Backend
	t       *testing.T
	server  Server
	ctx     context.Context
	letters chan cas.Letter
	lost    chan struct{}
}

func open(t *testing.T, server Server, instance string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
	t.Cleanup(cancel)
	c := &client{
		Backend: Only(t, server.Connect(), instance), t: t, server: server, ctx: ctx,
		letters: make(chan cas.Letter, 10_000), lost: make(chan struct{}, 100),
	}
	t.Cleanup(c.Stop)
	if err := c.Start(ctx, func(l cas.Letter) { c.letters <- l }, func() { c.lost <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the backend is ready", func() bool { return c.Ready() == nil })
	return c
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) load(key string) cas.Record {
	c.t.Helper()
	records, _, err := c.Load(c.ctx, []string{key}, nil)
	c.must(err)
	return records[0]
}

func (c *client) alive(id store.LeaseID) bool {
	c.t.Helper()
	_, states, err := c.Load(c.ctx, nil, []store.LeaseID{id})
	c.must(err)
	return states[0].Alive
}

func (c *client) swap(swaps ...cas.Swap) []cas.Swapped {
	c.t.Helper()
	results, err := c.Swap(c.ctx, swaps)
	c.must(err)
	if len(results) != len(swaps) {
		c.t.Fatalf("%d swaps have %d results", len(swaps), len(results))
	}
	return results
}

// done swaps one record, which must succeed.
func (c *client) done(s cas.Swap) cas.Record {
	c.t.Helper()
	result := c.swap(s)[0]
	if !result.Done || result.Record.Key != s.Key {
		c.t.Fatalf("the swap of %q was not carried out: %+v", s.Key, result)
	}
	return result.Record
}

// open opens a lease.
func (c *client) open(ttl time.Duration, instance string) store.LeaseID {
	c.t.Helper()
	id := uuid.New()
	_, err := c.OpenLeases(c.ctx, []cas.NewLease{{NewLease: store.NewLease{ID: id, TTL: ttl}, Instance: instance}})
	c.must(err)
	return id
}

func records(t *testing.T, c *client) {
	if r := c.load("ns/key"); r.Key != "ns/key" || r.Version != 0 || len(r.Data) != 0 || len(r.Leases) != 0 || len(r.States) != 0 {
		t.Errorf("a missing record: %+v", r)
	}
	lease := c.open(ttl, "")
	dead := uuid.New()
	first := c.done(cas.Swap{Key: "ns/key", Data: []byte("first"), Leases: []store.LeaseID{lease, dead}})
	if first.Version == 0 || first.Base <= 0 {
		t.Errorf("a new record: %+v", first)
	}
	r := c.load("ns/key")
	if r.Version != first.Version || r.Base != first.Base || r.Tokens != first.Tokens || string(r.Data) != "first" || len(r.Leases) != 2 || r.Leases[0] != lease || r.Leases[1] != dead {
		t.Errorf("loaded %+v, written %+v", r, first)
	}
	if len(r.States) != 2 || !r.States[0].Alive || r.States[1].Alive {
		t.Errorf("the states of its leases: %+v", r.States)
	}
	if left := r.States[0].Left; left < ttl/2 || left > ttl {
		t.Errorf("a lease of %s has %s left", ttl, left)
	}
	second := c.done(cas.Swap{Key: "ns/key", Version: first.Version, Data: []byte("second")})
	if second.Version == first.Version {
		t.Error("a swap did not change the version")
	}
	if r := c.load("ns/key"); string(r.Data) != "second" || len(r.Leases) != 0 {
		t.Errorf("after the second swap: %+v", r)
	}
	if deleted := c.done(cas.Swap{Key: "ns/key", Version: second.Version, Delete: true}); deleted.Version != 0 {
		t.Errorf("a deleted record: %+v", deleted)
	}
	if r := c.load("ns/key"); r.Version != 0 {
		t.Errorf("after the deletion: %+v", r)
	}
	all, states, err := c.Load(c.ctx, []string{"ns/b", "ns/a", "ns/b"}, []store.LeaseID{dead, lease})
	c.must(err)
	if len(all) != 3 || all[0].Key != "ns/b" || all[1].Key != "ns/a" || all[2].Key != "ns/b" {
		t.Errorf("several records: %+v", all)
	}
	if len(states) != 2 || states[0].Alive || !states[1].Alive {
		t.Errorf("several states: %+v", states)
	}
}

func swapsStandAlone(t *testing.T, c *client) {
	present := c.done(cas.Swap{Key: "ns/b", Data: []byte("old")})
	dead := uuid.New()
	results := c.swap(
		cas.Swap{Key: "ns/a", Data: []byte("new")},
		cas.Swap{Key: "ns/b", Data: []byte("new")}, // it exists
		cas.Swap{Key: "ns/c", Data: []byte("new"), Living: []store.LeaseID{dead}},
		cas.Swap{Key: "ns/d", Data: []byte("new"), Version: present.Version}, // it does not exist
		cas.Swap{Key: "ns/e", Data: []byte("new")},
	)
	for i, want := range []bool{true, false, false, false, true} {
		if results[i].Done != want {
			t.Errorf("swap %d: %+v", i, results[i])
		}
	}
	if r := results[1].Record; r.Version != present.Version || string(r.Data) != "old" || r.Base != present.Base {
		t.Errorf("the present record: %+v", r)
	}
	for key, want := range map[string]string{"ns/a": "new", "ns/b": "old", "ns/c": "", "ns/d": "", "ns/e": "new"} {
		if got := c.load(key); string(got.Data) != want {
			t.Errorf("%s: %+v, want %q", key, got, want)
		}
	}
	if results := c.swap(); len(results) != 0 {
		t.Errorf("no swaps: %+v", results)
	}
}

// oneOfMany has one condition that fails among others, again and again.
func oneOfMany(t *testing.T, c *client) {
	living, dead := c.open(ttl, ""), c.open(ttl, "")
	c.must(c.Revoke(c.ctx, []store.LeaseID{dead}))
	for n, fail := range []func(*cas.Swap){
		func(s *cas.Swap) { s.Living = append(s.Living, dead) },
		func(s *cas.Swap) { s.Version = 1 << 40 },
	} {
		asker := open(t, c.server, key(n)) // one that has not seen a failure yet
		for round := range 2 {
			var swaps []cas.Swap
			for i := range 5 {
				swaps = append(swaps, cas.Swap{Key: key(200*n + 100*round + i), Data: []byte("new"), Leases: []store.LeaseID{living}, Living: []store.LeaseID{living}})
			}
			fail(&swaps[3])
			for i, result := range asker.swap(swaps...) {
				if result.Done != (i != 3) {
					t.Errorf("round %d, swap %d: %+v", round, i, result)
				}
				if got := c.load(swaps[i].Key); got.Version != result.Record.Version || got.Base != result.Record.Base {
					t.Errorf("round %d, swap %d: %+v, loaded %+v", round, i, result.Record, got)
				}
			}
		}
	}
}

func manySwaps(t *testing.T, c *client) {
	const many = 300
	var swaps []cas.Swap
	for i := range many {
		swaps = append(swaps, cas.Swap{Key: key(i), Data: []byte(key(i)), Letters: []cas.Letter{{To: "one", Key: key(i), Body: []byte("hi")}}})
	}
	versions := map[string]int64{}
	for i, result := range c.swap(swaps...) {
		if !result.Done || result.Record.Key != key(i) {
			t.Fatalf("swap %d: %+v", i, result)
		}
		versions[result.Record.Key] = result.Record.Version
	}
	var keys []string
	for i := range many {
		keys = append(keys, key(i))
	}
	records, _, err := c.Load(c.ctx, keys, nil)
	c.must(err)
	for i, r := range records {
		if r.Key != key(i) || r.Version != versions[r.Key] || string(r.Data) != r.Key {
			t.Fatalf("record %d: %+v", i, r)
		}
	}
	for range many {
		await.Receive(t, c.letters, "a letter")
	}
}

// largeRecords: several large records of one call, new ones and others, are written as they are.
func largeRecords(t *testing.T, c *client) {
	swaps := make([]cas.Swap, 20)
	for round := range 2 {
		var keys []string
		for i := range swaps {
			keys = append(keys, key(i))
			swaps[i].Key, swaps[i].Data = key(i), bytes.Repeat([]byte{byte(round), byte(i)}, 50_000)
		}
		for i, result := range c.swap(swaps...) {
			if swaps[i].Version = result.Record.Version; !result.Done {
				t.Errorf("round %d, swap %d: %+v", round, i, result)
			}
		}
		loaded, _, err := c.Load(c.ctx, keys, nil)
		c.must(err)
		for i, r := range loaded {
			if !bytes.Equal(r.Data, swaps[i].Data) {
				t.Errorf("round %d, record %d: %d bytes were written, and %d others are read", round, i, len(swaps[i].Data), len(r.Data))
			}
		}
	}
	var leases []store.LeaseID
	for range 100 {
		leases = append(leases, uuid.New())
	}
	lease := c.open(ttl, "")
	c.done(cas.Swap{Key: "ns/leases", Leases: append(leases, lease)})
	r := c.load("ns/leases")
	if len(r.States) != 101 || !r.States[100].Alive || r.States[0].Alive {
		t.Errorf("a record of %d leases has the states %+v", len(r.Leases), r.States)
	}
}

func binaryData(t *testing.T, c *client) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	name := "ns/\x00\x01/ä\n*?[]:{}\"' \x7f"
	c.done(cas.Swap{Key: name, Data: all, Letters: []cas.Letter{{To: "one", Key: name, Body: all}}})
	if r := c.load(name); !bytes.Equal(r.Data, all) {
		t.Errorf("loaded %q", r.Data)
	}
	if l := await.Receive(t, c.letters, "the letter"); !bytes.Equal(l.Body, all) || l.Key != name || l.To != "one" {
		t.Errorf("the letter: %+v", l)
	}
	c.done(cas.Swap{Key: "ns/empty"})
	if r := c.load("ns/empty"); r.Version == 0 || len(r.Data) != 0 {
		t.Errorf("an empty record: %+v", r)
	}
	longest := name + strings.Repeat("\xff", cas.LongestKey-len(name))
	written := c.done(cas.Swap{Key: longest, Data: all, Letters: []cas.Letter{{To: "one", Key: longest, Body: all}}})
	c.done(cas.Swap{Key: longest[1:], Data: all})
	if r := c.load(longest); r.Key != longest || r.Version != written.Version {
		t.Errorf("the record of the longest key: %.50v, written %.50v", r, written)
	}
	if l := await.Receive(t, c.letters, "the letter"); l.Key != longest {
		t.Errorf("a letter about the longest key is about one of %d bytes", len(l.Key))
	}
}

// oldVersions: a version is that of one swap. So a late swap does nothing, also if its key was deleted and made again meanwhile.
func oldVersions(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	var old []int64
	for range 5 {
		r := c.done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
		for _, version := range old {
			if other.swap(cas.Swap{Key: "ns/key", Version: version, Data: []byte("late"), Tokens: 1})[0].Done {
				t.Fatalf("a swap of version %d was carried out, and the record with it was deleted", version)
			}
		}
		old = append(old, r.Version)
		r = other.done(cas.Swap{Key: "ns/key", Version: r.Version, Data: []byte("y")})
		old = append(old, r.Version)
		c.done(cas.Swap{Key: "ns/key", Version: r.Version, Delete: true})
	}
}

func presentRecord(t *testing.T, c *client) {
	lease, dead := c.open(ttl, ""), c.open(ttl, "")
	c.must(c.Revoke(c.ctx, []store.LeaseID{dead}))
	written := c.done(cas.Swap{Key: "ns/key", Data: []byte("held"), Leases: []store.LeaseID{dead, lease}})
	result := c.swap(cas.Swap{Key: "ns/key", Data: []byte("mine")})[0]
	if r := result.Record; result.Done || r.Version != written.Version || r.Base != written.Base || string(r.Data) != "held" || r.Key != "ns/key" ||
		len(r.Leases) != 2 || r.Leases[0] != dead || r.Leases[1] != lease {
		t.Errorf("the present record: %+v", result)
	}
	if states := result.Record.States; len(states) != 2 || states[0].Alive || !states[1].Alive {
		t.Errorf("the states of its leases: %+v", states)
	}
	// The version is right, so a lease is the reason.
	result = c.swap(cas.Swap{Key: "ns/key", Version: written.Version, Data: []byte("mine"), Living: []store.LeaseID{dead}})[0]
	if result.Done || result.Record.Version != written.Version {
		t.Errorf("a dead lease: %+v", result)
	}
}

func leasesAsConditions(t *testing.T, c *client) {
	one, other := c.open(ttl, ""), c.open(ttl, "")
	first := c.done(cas.Swap{Key: "ns/key", Data: []byte("1"), Living: []store.LeaseID{one, other}})
	c.must(c.Revoke(c.ctx, []store.LeaseID{other}))
	if result := c.swap(cas.Swap{Key: "ns/key", Version: first.Version, Data: []byte("2"), Living: []store.LeaseID{one, other}})[0]; result.Done {
		t.Error("a swap was carried out although one of its leases is dead")
	}
	if result := c.swap(cas.Swap{Key: "ns/key", Version: first.Version, Delete: true, Living: []store.LeaseID{other}})[0]; result.Done {
		t.Error("a record was deleted although a lease is dead")
	}
	c.done(cas.Swap{Key: "ns/key", Version: first.Version, Data: []byte("2"), Living: []store.LeaseID{one}})
}

// leaseDiesMeanwhile: whether a lease lives is judged in the same step as the version. So nothing that needs it comes after its end.
func leaseDiesMeanwhile(t *testing.T, c *client) {
	const rounds, many = 30, 20
	other := open(t, c.server, "other")
	lasts := time.Millisecond
	for round := range rounds {
		lease := c.open(ttl, "one")
		swaps, keys := make([]cas.Swap, many), make([]string, many)
		for i := range swaps {
			keys[i] = key(round*many + i)
			swaps[i] = cas.Swap{Key: keys[i], Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1}
		}
		began := time.Now()
		pause := rand.N(lasts) //nolint:gosec // of a test
		swapped := make(chan []cas.Swapped, 1)
		go func() {
			done, err := other.Swap(other.ctx, swaps)
			if err != nil {
				t.Error(err)
			}
			lasts = time.Since(began)
			swapped <- done
		}()
		time.Sleep(pause)
		c.must(c.Revoke(c.ctx, []store.LeaseID{lease}))
		found, _, err := c.Load(c.ctx, keys, nil)
		c.must(err)
		for i, done := range await.Receive(t, swapped, "the answer to the swaps") {
			if done.Done != (found[i].Version != 0) {
				t.Fatalf("round %d, swap %d: carried out: %t; when its lease had died: %t", round, i, done.Done, found[i].Version != 0)
			}
		}
	}
}

// lateRenewals: a renewal makes no lease live again that ends meanwhile.
func lateRenewals(t *testing.T, c *client) {
	other := open(t, c.server, "other")
	lasts := time.Millisecond
	for round := range 30 {
		var ids []store.LeaseID
		for range 10 {
			ids = append(ids, c.open(ttl, "one"))
		}
		began := time.Now()
		pause := rand.N(lasts) //nolint:gosec // of a test
		renewed := make(chan error, 1)
		go func() {
			_, _, err := other.Renew(other.ctx, ids)
			lasts = time.Since(began)
			renewed <- err
		}()
		time.Sleep(pause)
		c.must(c.Revoke(c.ctx, ids))
		c.must(await.Receive(t, renewed, "the answer to the renewal"))
		_, states, err := c.Load(c.ctx, nil, ids)
		c.must(err)
		if i := slices.IndexFunc(states, func(s cas.LeaseState) bool { return s.Alive }); i >= 0 {
			t.Fatalf("round %d: lease %d lives again", round, i)
		}
	}
}

func key(i int) string {
	return "ns/" + string(rune('a'+i/100)) + string(rune('a'+i/10%10)) + string(rune('a'+i%10))
}

func oneWins(t *testing.T, c *client) {
	const askers, rounds = 8, 20
	var others []*client
	for i := range askers {
		others = append(others, open(t, c.server, "asker"+key(i)))
	}
	version := int64(0)
	for round := range rounds {
		winners := make(chan cas.Record, askers)
		var asking sync.WaitGroup
		for _, other := range others {
			asking.Go(func() {
				results, err := other.Swap(other.ctx, []cas.Swap{{Key: "ns/key", Version: version, Data: []byte("x")}})
				if err != nil {
					t.Error(err)
				} else if results[0].Done {
					winners <- results[0].Record
				}
			})
		}
		asking.Wait()
		if len(winners) != 1 {
			t.Fatalf("round %d: %d swaps of the same version were carried out", round, len(winners))
		}
		version = (<-winners).Version
	}
}

func lifecycle(t *testing.T, c *client) {
	never := c.server.Connect()
	view := never.View("never")
	view.Stop()
	view.Stop()
	never.Stop()
	never.Stop()
	process := c.server.Connect()
	defer process.Stop()
	b := process.View("two")
	if b.Ready() == nil {
		t.Error("ready before any start")
	}
	c.must(process.Start(c.ctx))
	if b.Ready() == nil {
		t.Error("ready before the start")
	}
	if err := b.Start(c.ctx, func(cas.Letter) {}, func() {}); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	b.Stop()
	if b.Ready() == nil {
		t.Error("ready after the end")
	}
	process.Stop()
	_, err := b.Swap(c.ctx, []cas.Swap{{Key: "ns/late"}})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a swap after the end: %v", err)
	}
	if r := c.load("ns/late"); r.Version != 0 {
		t.Errorf("a swap after the end was carried out: %+v", r)
	}
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	if _, _, err := c.Load(ended, []string{"ns/key"}, nil); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a Load of a caller that has left: %v", err)
	}
}
