package redis_test

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/redis"
)

const quick = 2 * time.Second // a TTL

// grants tries to grant a key until it succeeds, and returns the record and when it was.
func (r *rig) grants(key string) (cas.Record, time.Time) {
	r.T.Helper()
	var got cas.Record
	await.Until(r.T, "the key is granted", func() bool {
		records, _, err := r.Load(r.Ctx, []string{key}, nil)
		if err != nil {
			return false
		}
		result, err := r.SwapOne(cas.Swap{Key: key, Version: records[0].Version, Data: []byte("x"), Tokens: 1})
		got = result.Record
		return err == nil && result.Done
	})
	return got, time.Now()
}

// TestAForgottenGrant: a promoted replica that missed a grant grants nothing for the TTL, and begins a new history. Its
// tokens and versions are above the forgotten ones, and its known leases go on.
// Proves: A9
func TestAForgottenGrant(t *testing.T) {
	t.Parallel()
	g := redistest.StartSentinel(t)
	s := &server{t: t, url: g.URL(), ttl: 100 * time.Millisecond, limit: 2 * time.Second}
	r := s.ready("one")
	kept := r.OpenLease(time.Minute)
	short := r.OpenLease(quick)
	known, _ := r.grants("ns/known") // a server that is younger than the usual TTL grants nothing yet
	history := r.LoadOne("ns/known").History
	g.Replica.CaughtUp(t, g.Master)
	if !r.Keeps(kept) || !r.Keeps(short) {
		t.Fatal("not renewed")
	}
	r.Must(r.Revoke(r.Ctx, []store.LeaseID{kept})) // its TTL stays noted
	kept = r.OpenLease(time.Minute)
	g.Replica.CaughtUp(t, g.Master)
	// A minute would be too long for this test: the server forgets that the TTL was used.
	g.Master.Do(t, "HDEL", "locksidecar:{"+tag+"}:meta", "ttl 61440")
	g.Replica.CaughtUp(t, g.Master)
	g.Replica.Forget(t)
	forgotten := r.Done(cas.Swap{Key: "ns/forgotten", Data: []byte("x"), Tokens: 1})
	g.Master.Kill()
	died := time.Now()
	g.FailedOver(t)

	var refused cas.Swapped
	await.Until(t, "the new master answers", func() bool {
		var err error
		refused, err = r.SwapOne(cas.Swap{Key: "ns/forgotten", Data: []byte("x"), Tokens: 1})
		return err == nil
	})
	if refused.Done || refused.Quiet <= 0 || refused.Quiet > 2*quick {
		t.Errorf("the first answer of the new master: %+v", refused)
	}
	if now := r.LoadOne("ns/known"); now.History == history || now.Version != known.Version {
		t.Errorf("a known record: %+v, was %+v in %s", now, known, history)
	}
	if !r.Keeps(kept) {
		t.Error("a known lease was not renewed")
	}
	if r.Done(cas.Swap{Key: "ns/known", Version: known.Version}).Version <= forgotten.Version {
		t.Error("the version of a forgotten swap may come again")
	}
	got, when := r.grants("ns/forgotten")
	if got.Base <= forgotten.Base {
		t.Errorf("token %d after the forgotten %d", got.Base, forgotten.Base)
	}
	if after := when.Sub(died); after < quick {
		t.Errorf("granted %s after the death of the old master, with leases of %s", after, quick)
	}
	await.Receive(t, r.Lost, "the loss of letters")
}

// tag is that of a server's only partition.
var tag = redis.Tag()

// TestARestartThatForgetsEverything: a server without files grants nothing until the TTL that its clients use has passed.
// Proves: A9
func TestARestartThatForgetsEverything(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	s := at(t, d)
	first := s.ready("one")
	first.OpenLease(quick)
	first.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
	before := first.LoadOne("ns/key")
	d.Restart(t)
	restarted := time.Now()
	got, when := first.grants("ns/key") // this instance knows the TTL
	if when.Sub(restarted) < quick-time.Second {
		t.Errorf("granted %s after the restart, with leases of %s", when.Sub(restarted), quick)
	}
	if got.Base <= before.Base {
		t.Errorf("token %d after %d", got.Base, before.Base)
	}
	d.Do(t, "FLUSHALL") // the server was up for long, but remembers that there was something
	first.OpenLease(quick)
	flushed := time.Now()
	if _, when = first.grants("ns/key"); when.Sub(flushed) < quick/2 {
		t.Errorf("granted %s after FLUSHALL", when.Sub(flushed))
	}
}

// TestANewServer: one that has been up for a TTL has no quiet time.
func TestANewServer(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	await.Until(t, "the server is a second old", func() bool { return d.Info(t, "server", "uptime_in_seconds") != "0" })
	s := at(t, d)
	s.ttl = 900 * time.Millisecond
	r := s.ready("one")
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
}

// TestARestartFromItsFile: what appendfsync always has written is kept, also after kill -9.
func TestARestartFromItsFile(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := at(t, d)
	log := s.logged()
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	var last cas.Record
	for range 100 {
		last = r.Done(cas.Swap{Key: "ns/key", Version: last.Version, Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
	}
	d.Do(t, "HDEL", "locksidecar:{"+tag+"}:meta", "ttl 61440") // no quiet time in this test
	d.Restart(t)
	await.Until(t, "the lease is renewed", func() bool { return r.Keeps(lease) })
	if now := r.LoadOne("ns/key"); now.Version != last.Version || !now.States[0].Alive {
		t.Errorf("after the restart %+v, before %+v", now, last)
	}
	if !log.Has("Redis keeps locks on its disk") {
		t.Errorf("the log:\n%s", log)
	}
}

// A listener whose connection was cut says that letters may be lost, and then hears again.
func TestLettersOfAnOutage(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	link := process.NewLink(t, d.Address)
	near, far := at(t, d), &server{t: t, url: "redis://" + link.Address, limit: time.Second}
	writer, reader := near.ready("writer"), far.ready("one")
	writer.Write("one", 1)
	reader.Reads(1)
	await.Silent(t, reader.Lost, "loss")
	link.Cut()
	writer.Write("one", 2)
	link.Mend()
	await.Receive(t, reader.Lost, "the loss")
	writer.Write("one", 3)
	reader.Reads(3)
	// A frozen server is found by pings.
	reader.BecomesReady()
	d.Do(t, "CLIENT", "KILL", "TYPE", "PUBSUB")
	await.Receive(t, reader.Lost, "the loss")
	writer.BecomesReady()
	writer.Write("one", 4)
	reader.Reads(4)
}

// If the memory is full, nothing new is granted, and the error says why. Renewals and ends still work.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t, "--maxmemory", "8mb", "--maxmemory-policy", "noeviction")
	r := at(t, d).ready("one")
	lease, other := r.OpenLease(time.Minute), r.OpenLease(time.Minute)
	held := r.Done(cas.Swap{Key: "ns/held", Data: []byte("x"), Leases: []store.LeaseID{lease}, Tokens: 1})
	var err error
	for i := 0; err == nil && i < 200; i++ {
		_, err = r.SwapOne(cas.Swap{Key: uuid.NewString(), Data: make([]byte, 200_000), Tokens: 1})
	}
	if !store.Unavailable(err) || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "maxmemory") {
		t.Fatalf("with a full memory: %v", err)
	}
	if !r.Keeps(lease) {
		t.Error("a renewal failed")
	}
	if err := r.Ready(); err != nil {
		t.Errorf("not ready, so that renewals would be refused: %v", err)
	}
	d.Do(t, "CONFIG", "SET", "maxmemory", "1") // the refused swap was large: without it there is room for small ones
	held = r.Done(cas.Swap{Key: "ns/held", Version: held.Version, Data: []byte("released")})
	held = r.Done(cas.Swap{Key: "ns/held", Version: held.Version, Data: []byte("handed on"), Tokens: 1, Ends: true})
	results, err := r.Swap(r.Ctx, []cas.Swap{{Key: "ns/new", Data: []byte("new"), Tokens: 1}, {Key: "ns/held", Version: held.Version, Data: []byte("released")}})
	if err != nil || results[0].Done || !results[0].Later || !results[1].Done {
		t.Errorf("a release beside a new lock: %+v, %v", results, err)
	}
	_, err = r.OpenLeases(r.Ctx, []cas.NewLease{{NewLease: store.NewLease{ID: uuid.New(), TTL: time.Minute}, Ends: true}})
	r.Must(err)
	r.Must(r.Revoke(r.Ctx, []store.LeaseID{other}))
}

// TestFullMemoryEndsLocks: with full memory a release hands its key on, also to a lock of its own TTL, and beside an acquire that is refused.
func TestFullMemoryEndsLocks(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t, "--maxmemory-policy", "noeviction")
	e := at(t, d)
	s := castest.Spaces(t, e, 1)[0].View(store.Identity{Namespace: "n", Instance: "two"}).(*cas.Store)
	defer s.Stop()
	r := e.ready("one")
	r.Must(s.Start(r.Ctx, nil))
	await.Until(t, "the store is ready", func() bool { return s.Ready() == nil })
	lease := uuid.New()
	r.Must(s.OpenLeases(r.Ctx, []store.NewLease{{ID: lease, TTL: time.Minute}}))
	ask := func(key string) store.Ask {
		return store.Ask{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}
	}
	asks := []store.Ask{ask("a"), ask("b"), ask("c")}
	grants, err := s.Acquire(r.Ctx, asks)
	r.Must(err)
	timed := ask("b")
	timed.TTL = time.Minute
	waits := []store.Ask{ask("a"), timed}
	_, err = s.Enqueue(r.Ctx, waits)
	r.Must(err)
	d.Do(t, "CONFIG", "SET", "maxmemory", "1")
	claim := func(i int) store.Claim { return store.Claim{Key: asks[i].Key, Token: grants[i].Token, Lease: lease} }
	verdicts, err := s.Release(r.Ctx, []store.Claim{claim(0), claim(1)})
	if r.Must(err); verdicts[0].Status != store.Holds || verdicts[1].Status != store.Holds {
		t.Errorf("releases with waiters: %+v", verdicts)
	}
	answers, err := s.Check(r.Ctx, []store.Attempt{waits[0].Attempt, waits[1].Attempt})
	if r.Must(err); answers[0].Outcome != store.Granted || answers[1].Outcome != store.Granted {
		t.Errorf("handed on: %+v", answers)
	}
	fresh, acquireErr, verdicts, releaseErr := s.AcquireAndRelease(r.Ctx, []store.Ask{ask("new")}, []store.Claim{claim(2)})
	if acquireErr != nil || releaseErr != nil || fresh[0].Outcome != store.RowLocked || verdicts[0].Status != store.Holds {
		t.Errorf("an acquire beside a release: %+v, %v, %+v, %v", fresh, acquireErr, verdicts, releaseErr)
	}
	if _, err := s.Acquire(r.Ctx, []store.Ask{ask("new")}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("an acquire alone: %v", err)
	}
}

// Servers that would lose locks, or cannot keep them, are refused, and the reason says what to do.
func TestRefusedServers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		acl  []any
		url  string
		why  string
	}{
		"eviction":       {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, nil, "", "set it to noeviction"},
		"no password":    {[]string{"--requirepass", "secret"}, nil, "", "redis wants a user and password"},
		"wrong password": {[]string{"--requirepass", "secret"}, nil, ":wrong@", "refuses the user or password"},
		"no rights":      {nil, []any{"~*", "&*", "+info"}, "app:pw@", "lacks a right"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := redistest.Start(t, test.args...)
			if test.acl != nil {
				d.Do(t, append([]any{"ACL", "SETUSER", "app", "on", ">pw"}, test.acl...)...)
			}
			(&server{t: t, url: "redis://" + test.url + d.Address, limit: time.Second}).start("one").Refuses(test.why)
		})
	}
	master, replica := redistest.Start(t), redistest.Start(t)
	replica.Follow(t, master.Address)
	at(t, replica).start("one").Refuses("takes no writes")
}

// An operator may flush the functions. They are loaded again.
func TestFunctionsAreLoadedAgain(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	r := at(t, d).ready("one")
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	d.Do(t, "FUNCTION", "FLUSH")
	r.Done(cas.Swap{Key: "ns/other", Data: []byte("x")})
}

// The rights of docs/stores.md suffice.
// Proves: threat redis user
func TestRights(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	d.Do(t, append([]any{"ACL", "SETUSER", "app", "on", ">p@:w/", "resetchannels"}, redis.Rights()...)...)
	r := (&server{t: t, url: "redis://app:p%40%3Aw%2F@" + d.Address}).ready("one")
	lease := r.OpenLease(time.Minute)
	held := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
	r.Write("one", 1)
	r.Reads(1)
	if _, err := r.Scan(r.Ctx, "ns/", "", 9); err != nil || !r.Keeps(lease) {
		t.Errorf("scan: %v", err)
	}
	if _, err := r.Opened(r.Ctx, "one"); err != nil {
		t.Error(err)
	}
	r.Done(cas.Swap{Key: "ns/key", Version: held.Version, Delete: true})
	r.Must(r.Revoke(r.Ctx, []store.LeaseID{lease}))
}

// A new password in the file of the URL is used by the next connection.
func TestANewPassword(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t, "--requirepass", "old")
	var url atomic.Pointer[string]
	set := func(password string) {
		u := "redis://:" + password + "@" + d.Address
		url.Store(&u)
	}
	set("old")
	server, err := redis.NewServer(redis.Config{ServerConfig: cas.ServerConfig{URL: *url.Load(), Again: func() (string, error) { return *url.Load(), nil }, Timeout: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	b := castest.Only(t, server, "one").(*redis.Backend)
	r := &rig{b, castest.Start(t, b)}
	r.BecomesReady()
	admin := goredis.NewClient(&goredis.Options{Addr: d.Address, Password: "old", Protocol: 2, DisableIdentity: true})
	defer func() { _ = admin.Close() }()
	r.Must(admin.ConfigSet(t.Context(), "requirepass", "new").Err())
	set("new")
	r.Must(admin.Do(t.Context(), "CLIENT", "KILL", "SKIPME", "yes").Err())
	await.Receive(t, r.Lost, "a new connection")
	await.Until(t, "a swap succeeds", func() bool {
		result, err := r.SwapOne(cas.Swap{Key: uuid.NewString(), Data: []byte("x")})
		return err == nil && result.Done
	})
}

// TestTokensAfterFailoversAndALoss: each new history jumps. A server that then loses all its data jumps farther, even if nobody
// remembers, and as far as somebody remembers.
// Proves: A9
func TestTokensAfterFailoversAndALoss(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	r := at(t, d).ready("one")
	const days = 48 * 3600 * 1_000_000 // what was given away when the server was new
	var before cas.Record
	fails := func(by *rig, times int) {
		for range times {
			d.Do(t, "HSET", "locksidecar:{"+tag+"}:meta", "run", "another", "until", "0")
			before = by.Done(cas.Swap{Key: uuid.NewString(), Data: []byte("x"), Tokens: 1})
		}
	}
	loses := func(by *rig) {
		t.Helper()
		d.Do(t, "FLUSHALL")
		if after := by.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1}); after.Base <= before.Base {
			t.Errorf("token %d after %d", after.Base, before.Base)
		}
	}
	fails(r, 1)
	began, _ := d.Do(t, "HGET", "locksidecar:{"+tag+"}:meta", "began").(string)
	now, err := strconv.ParseInt(began, 10, 64)
	r.Must(err)
	d.Do(t, "HSET", "locksidecar:{"+tag+"}:meta", "from", "0", "began", strconv.FormatInt(now-days, 10))
	fails(r, 20)
	loses(at(t, d).ready("two"))
	fails(r, 100)
	loses(r)
}

// TestTokensFollowTheClock: a server that has lost nothing of what its callers saw goes by its clock. Otherwise each token would raise the
// next one, and they would reach the largest one.
// Proves: A9
func TestTokensFollowTheClock(t *testing.T) {
	t.Parallel()
	r := at(t, redistest.Start(t)).ready("one")
	first, began := r.grants("ns/key")
	last := first
	const swaps, tokens = 100, 1000
	for range swaps {
		last = r.Done(cas.Swap{Key: "ns/key", Version: last.Version, Data: []byte("x"), Tokens: tokens})
	}
	if grew := last.Base - first.Base; grew > swaps*tokens+time.Since(began).Microseconds() {
		t.Errorf("%d swaps of %d tokens raised them by %d", swaps, tokens, grew)
	}
}

// TestALossThatOneCallTells: the first call of an instance to a server that lost everything tells the TTLs of its leases. It may be the
// only one: the leases that it renews are lost.
// Proves: A9
func TestALossThatOneCallTells(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	s := at(t, d)
	s.ttl = 100 * time.Millisecond
	holder, other := s.ready("one"), s.ready("two")
	holder.grants("ns/key") // a server that is younger than the usual TTL grants nothing yet
	lease := holder.OpenLease(quick)
	held := holder.Done(cas.Swap{Key: "ns/held", Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
	d.Do(t, "FLUSHALL")
	flushed := time.Now()
	if holder.Keeps(lease) {
		t.Fatal("the lease is still there")
	}
	got, when := other.grants("ns/held")
	if after := when.Sub(flushed); after < quick-100*time.Millisecond {
		t.Errorf("granted %s after FLUSHALL, with a lease of %s", after, quick)
	}
	if got.Base <= held.Base {
		t.Errorf("token %d after %d", got.Base, held.Base)
	}
}

// TestALeaseThatIsOpenedAfterALoss: the quiet time is for leases of before the loss, not for the one that the first call opens.
func TestALeaseThatIsOpenedAfterALoss(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	s := at(t, d)
	s.ttl = quick
	r := s.ready("one")
	r.grants("ns/key") // a server that is younger than the usual TTL grants nothing yet
	d.Do(t, "FLUSHALL")
	r.OpenLease(time.Minute)
	answer, err := r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
	if r.Must(err); answer.Done || answer.Quiet > quick {
		t.Errorf("answered %+v", answer)
	}
}
