package cas_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// instance is a started store, the requests that it made, and its news.
type instance struct {
	*testing.T
	*cas.Store
	lease store.LeaseID

	mu       sync.Mutex
	requests []string
	news     []store.News
	// fault is what happens to the next request with this name.
	next  string
	fault fake.Fault
	// always: it happens to all others, too.
	always bool
	// losing: letters to this instance are lost.
	losing bool
	// far is how long each request travels to the server, and its answer back.
	far time.Duration
}

func start(t *testing.T, server *fake.Server, id store.Identity, cfg cas.Config) *instance {
	t.Helper()
	in := &instance{T: t}
	backend := server.Open(id.Instance, fake.Faults{Request: in.request, Letter: in.letter})
	in.Store = cas.NewSpace(fake.Only(backend), cfg).View(id).(*cas.Store)
	in.ok(in.Start(t.Context(), func(n store.News) {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.news = append(in.news, n)
	}))
	t.Cleanup(in.Stop)
	in.lease = in.open(time.Hour)
	in.made()
	return in
}

// pair starts two instances in virtual time.
func pair(t *testing.T, cfg cas.Config, test func(server *fake.Server, a, b *instance)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		a := start(t, server, store.Identity{Namespace: "n", Instance: "a", Pod: "pa"}, cfg)
		b := start(t, server, store.Identity{Namespace: "n", Instance: "b", Pod: "pb"}, cfg)
		test(server, a, b)
	})
}

func (in *instance) ok(err error) {
	in.Helper()
	if err != nil {
		in.Fatal(err)
	}
}

func (in *instance) request(op string) fake.Fault {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.requests = append(in.requests, op)
	if op != in.next {
		return fake.Fault{Slow: in.far, SlowAnswer: in.far}
	}
	if !in.always {
		in.next = ""
	}
	return in.fault
}

func (in *instance) letter() fake.LetterFault {
	in.mu.Lock()
	defer in.mu.Unlock()
	return fake.LetterFault{Lost: in.losing}
}

func (in *instance) fails(op string, fault fake.Fault) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.next, in.fault = op, fault
}

// made returns the requests since the last call, without those of the background.
func (in *instance) made() string {
	synctest.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	made := slices.DeleteFunc(in.requests, func(op string) bool { return op == "Revoke" })
	in.requests = nil
	return strings.Join(made, " ")
}

// told returns the news since the last call.
func (in *instance) told() []store.News {
	synctest.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	news := in.news
	in.news = nil
	return news
}

func (in *instance) open(ttl time.Duration) store.LeaseID {
	in.Helper()
	id := uuid.New()
	in.ok(in.OpenLeases(in.Context(), []store.NewLease{{ID: id, TTL: ttl}}))
	return id
}

func (in *instance) ask(name string) store.Ask {
	return store.Ask{Attempt: store.Attempt{Key: name, ID: uuid.New()}, Lease: in.lease}
}

// gets makes an attempt that waits if it must. Its outcome must be this one.
func (in *instance) gets(ask store.Ask, want store.Outcome) store.Answer {
	in.Helper()
	return in.asks(in.Enqueue, ask, want)
}

// tries makes an attempt that does not wait.
func (in *instance) tries(ask store.Ask, want store.Outcome) store.Answer {
	in.Helper()
	return in.asks(in.Acquire, ask, want)
}

func (in *instance) asks(how func(context.Context, []store.Ask) ([]store.Answer, error), ask store.Ask, want store.Outcome) store.Answer {
	in.Helper()
	answers, err := how(in.Context(), []store.Ask{ask})
	in.ok(err)
	if answers[0].Outcome != want {
		in.Fatalf("%s: outcome %d, want %d", ask.Key, answers[0].Outcome, want)
	}
	return answers[0]
}

func (in *instance) release(ask store.Ask, a store.Answer) (store.ClaimStatus, error) {
	c := store.Claim{Key: ask.Key, Token: a.Token}
	if ask.TTL == 0 {
		c.Lease = ask.Lease
	}
	verdicts, err := in.Release(in.Context(), []store.Claim{c})
	return verdicts[0].Status, err
}

func (in *instance) releases(ask store.Ask, a store.Answer, want store.ClaimStatus) {
	in.Helper()
	status, err := in.release(ask, a)
	in.ok(err)
	if status != want {
		in.Fatalf("%s: claim status %d, want %d", ask.Key, status, want)
	}
}

func (in *instance) wants(what, want string) {
	in.Helper()
	if made := in.made(); made != want {
		in.Errorf("%s: requests %q, want %q", what, made, want)
	}
}
