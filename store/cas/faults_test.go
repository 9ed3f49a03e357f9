package cas_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
	"github.com/locksidecar/locksidecar/store/key"
)

// TestPromisesUnderFaults lets clients of three instances use a few keys, and keep some, while requests are lost, late, slow or
// answered to nobody, letters are slow or lost, and leases die. The server's records must keep each promise after
// each swap, and each client must get its turn.
// Proves: A7
func TestPromisesUnderFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := 0
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			tr := newTrial(rapid.Uint64().Draw(t, "seed"))
			tr.run(t)
			takes += tr.takes
		})
		if takes == 0 {
			t.Error("nobody got a kept key")
		}
	})
}

const (
	callTime   = time.Second
	leaseTime  = 10 * time.Second
	latest     = 3 * time.Second // of a late request
	sharedKey  = "shared"
	shareLimit = 2
	instances  = 3
)

// ownKey is the key that mostly this instance uses.
func ownKey(instance int) string { return fmt.Sprint("own-", instance) }

// trial is one run.
type trial struct {
	server *fake.Server
	calm   atomic.Bool

	mu     sync.Mutex
	random *rand.Rand
	wrong  []string
	// over are attempts whose client no longer needs what it has. Some of them it withdraws, and gone are those that were
	// withdrawn.
	over, withdraws, gone map[store.AttemptID]bool
	// adopted are sessions that got a kept key, and that the store shall know.
	adopted map[store.AttemptID]bool
	tokens  map[string]int64
	grants  int
	// takes counts the sessions that got a kept key from their instance.
	takes int
	pods  []*pod
}

func newTrial(seed uint64) *trial {
	tr := &trial{
		server: fake.NewServer(), random: rand.New(rand.NewPCG(seed, 1)),
		over: map[store.AttemptID]bool{}, withdraws: map[store.AttemptID]bool{}, gone: map[store.AttemptID]bool{}, adopted: map[store.AttemptID]bool{}, tokens: map[string]int64{},
	}
	tr.server.Swapped = tr.judge
	return tr
}

func (tr *trial) chance(percent int) bool { return tr.below(100) < percent }

func (tr *trial) below(n int) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.random.IntN(n)
}

func (tr *trial) upTo(d time.Duration) time.Duration {
	return time.Duration(tr.below(int(d/time.Millisecond))+1) * time.Millisecond
}

func (tr *trial) faults() fake.Faults {
	return fake.Faults{
		Request: func(string) fake.Fault {
			if tr.calm.Load() {
				return fake.Fault{}
			}
			switch n := tr.below(100); {
			case n < 4:
				return fake.Fault{Lost: true, Late: -1}
			case n < 10:
				return fake.Fault{Lost: true}
			case n < 16:
				return fake.Fault{Lost: true, Late: tr.upTo(latest)}
			case n < 18:
				return fake.Fault{Refused: true}
			case n < 50:
				return fake.Fault{Slow: tr.upTo(300 * time.Millisecond), SlowAnswer: tr.upTo(300 * time.Millisecond)}
			default:
				return fake.Fault{}
			}
		},
		Letter: func() fake.LetterFault {
			if tr.calm.Load() {
				return fake.LetterFault{}
			}
			return fake.LetterFault{Lost: tr.chance(5), Told: tr.upTo(time.Second), Slow: tr.upTo(200 * time.Millisecond)}
		},
	}
}

func (tr *trial) wrongf(format string, args ...any) {
	tr.wrong = append(tr.wrong, fmt.Sprintf(format, args...))
}

// judge compares two versions of a record.
func (tr *trial) judge(was, is cas.Record, alive func(store.LeaseID) bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	before, after := &key.Record{}, &key.Record{}
	for r, to := range map[*cas.Record]**key.Record{&was: &before, &is: &after} {
		if r.Version != 0 {
			var err error
			if *to, err = cas.Decode(r); err != nil {
				tr.wrongf("%v", err)
				return
			}
		}
	}
	living := func(rec *key.Record, n int) bool { return n > 0 && alive(rec.Leases[n-1].ID) }
	old, present := holders(before), holders(after)
	var newest int64
	for id, h := range old {
		if newest = max(newest, h.Token); living(before, h.Lease) && !tr.over[id] && present[id] == nil {
			tr.wrongf("%s: %s lost its lock under %d although it lives", is.Key, id, h.Token)
		}
	}
	kept := living(before, before.Holder.Hold) && !tr.withdraws[before.Holder.Attempt]
	if kept && (after.Holder.Token != before.Holder.Token || after.Holder.Hold == 0) {
		tr.wrongf("%s: the hold of token %d is not kept\n%+v\n%+v", is.Key, before.Holder.Token, before, after)
	}
	shared := 0
	var granted []*key.RecordHolder
	for id, h := range present {
		if h.Shared {
			shared++
		}
		if (old[id] == nil || old[id].Token != h.Token) && !tr.adopted[id] {
			granted = append(granted, h)
		}
		if tr.gone[id] && (old[id] == nil || living(after, h.Lease)) { // a dead holder may stay in the record
			tr.wrongf("%s: %s is granted after its withdrawal\n%+v\n%+v", is.Key, id, before, after)
		}
	}
	if len(present) > 1 && shared != len(present) || shared > shareLimit {
		tr.wrongf("%s: %d holders, %d of them share", is.Key, len(present), shared)
	}
	slices.SortFunc(granted, func(a, b *key.RecordHolder) int { return cmp.Compare(a.Token, b.Token) })
	for _, h := range granted {
		tr.grants++
		if h.Token <= tr.tokens[is.Key] {
			tr.wrongf("%s: token %d after %d", is.Key, h.Token, tr.tokens[is.Key])
		}
		if tr.tokens[is.Key] = h.Token; !living(after, h.Lease) {
			tr.wrongf("%s: %s is granted under a dead lease", is.Key, h.Attempt)
		}
		place := slices.IndexFunc(before.Waiters, func(w key.RecordWaiter) bool { return w.Attempt == h.Attempt })
		for i, w := range before.Waiters {
			waits := present[w.Attempt] == nil && living(before, w.Lease) && !tr.over[w.Attempt]
			if waits && (place < 0 || i < place) {
				tr.wrongf("%s: %s overtakes %s", is.Key, h.Attempt, w.Attempt)
			}
		}
	}
	for _, w := range after.Waiters {
		if tr.gone[w.Attempt] {
			tr.wrongf("%s: %s waits after its withdrawal", is.Key, w.Attempt)
		}
		if len(present) == 0 && after.Holder.Hold == 0 && living(after, w.Lease) { // the first waiter takes the key after a hold
			tr.wrongf("%s: free, but %s waits", is.Key, w.Attempt)
		}
	}
}

// holders returns who holds a key, dead or alive.
func holders(rec *key.Record) map[store.AttemptID]*key.RecordHolder {
	found := map[store.AttemptID]*key.RecordHolder{}
	if len(rec.Shares) == 0 && rec.Holder.Lease > 0 {
		found[rec.Holder.Attempt] = &rec.Holder
	}
	for i := range rec.Shares {
		found[rec.Shares[i].Attempt] = &rec.Shares[i]
	}
	return found
}

// gives lets a session have a kept key under this token, unless the lease is over.
func (tr *trial) gives(ask store.Ask, token int64) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.over[ask.ID] {
		return false
	}
	tr.takes++
	if token <= tr.tokens[ask.Key] {
		tr.wrongf("%s: a session got the kept key under %d after %d", ask.Key, token, tr.tokens[ask.Key])
	}
	tr.tokens[ask.Key] = token
	return true
}

// adopts notes that the store is told of a session which got a kept key.
func (tr *trial) adopts(first, id store.AttemptID) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.over[first], tr.adopted[id] = true, true
}

// end notes that a client no longer relies on an attempt, or with gone that it was withdrawn.
func (tr *trial) end(id store.AttemptID, gone bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.over[id] = true
	if gone {
		tr.gone[id] = true
	}
}

func (tr *trial) run(t *rapid.T) {
	var clients, background sync.WaitGroup
	stop := make(chan struct{})
	for i := range instances {
		p := &pod{trial: tr, own: ownKey(i), waits: map[store.AttemptID]chan store.News{}, last: map[string]int64{}, recalls: map[string]int{}}
		id := store.Identity{Namespace: "n", Instance: fmt.Sprint("pod-", i), Pod: "p"}
		p.store = cas.NewSpace(fake.Only(tr.server.Open(id.Instance, tr.faults())), cas.Config{SweepTerm: -1}).View(id).(*cas.Store)
		must(t, p.store.Start(context.Background(), p.hear))
		p.renewLease()
		tr.pods = append(tr.pods, p)
		background.Go(func() { p.keepAlive(stop) })
		for range 3 {
			clients.Go(func() {
				for range 6 {
					p.turn()
				}
			})
		}
	}
	finished := make(chan struct{})
	go func() { clients.Wait(); close(finished) }()
	select {
	case <-time.After(2 * time.Minute):
		tr.calm.Store(true)
	case <-finished:
	}
	tr.calm.Store(true)
	select {
	case <-finished:
	case <-time.After(20 * time.Minute):
		t.Fatalf("clients are stuck: %+v", tr.show())
	}
	close(stop)
	background.Wait()
	time.Sleep(latest) // the last late requests
	for _, p := range tr.pods {
		p.store.Stop()
	}
	if len(tr.wrong) > 0 {
		t.Fatalf("after %d grants: %q", tr.grants, tr.wrong)
	}
	if tr.grants < 9*6/2 {
		t.Fatalf("only %d grants", tr.grants)
	}
}

func must(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func (tr *trial) show() []store.Lock {
	locks, _ := tr.pods[0].store.Get(context.Background(), []string{"k", sharedKey})
	return locks
}

// pod is an instance with its clients.
type pod struct {
	*trial
	store *cas.Store

	mu    sync.Mutex
	lease store.LeaseID
	until time.Time
	waits map[store.AttemptID]chan store.News
	held  map[store.AttemptID]bool // under the lease
	// own is the key that mostly this instance uses. last are the tokens under which it released keys last, and recalls how often each
	// was recalled.
	own     string
	last    map[string]int64
	recalls map[string]int
}

func (p *pod) hear(n store.News) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n.Recall {
		p.recalls[n.Key]++
	}
	for id, ch := range p.waits {
		if n.ID == id || n.ID == (store.AttemptID{}) {
			select {
			case ch <- n:
			default:
			}
		}
	}
}

// call limits a call.
func call(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	return do(ctx)
}

// ask sometimes releases with the same requests what nobody holds.
func (p *pod) ask(ctx context.Context, ask store.Ask, wait bool) ([]store.Answer, error) {
	switch {
	case wait:
		return p.store.Enqueue(ctx, []store.Ask{ask})
	case p.chance(50):
		return p.store.Acquire(ctx, []store.Ask{ask})
	}
	answers, err, _, _ := p.store.AcquireAndRelease(ctx, []store.Ask{ask}, []store.Claim{{Key: ask.Key, Token: -1}, {Key: "other", Token: -1}})
	return answers, err
}

// persist repeats a call until it succeeds.
func (p *pod) persist(do func(ctx context.Context) error) {
	for call(do) != nil {
		time.Sleep(p.upTo(200 * time.Millisecond))
	}
}

// renewLease replaces a lease that is over.
func (p *pod) renewLease() {
	id, sent := uuid.New(), time.Now()
	p.persist(func(ctx context.Context) error {
		id, sent = uuid.New(), time.Now()
		return p.store.OpenLeases(ctx, []store.NewLease{{ID: id, TTL: leaseTime}})
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lease, p.until, p.held = id, sent.Add(leaseTime), map[store.AttemptID]bool{}
}

// lose ends what the clients believe to hold under the lease, before the lease ends.
func (p *pod) lose() store.LeaseID {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.held {
		p.end(id, false)
	}
	return p.lease
}

func (p *pod) keepAlive(stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Second):
		}
		if !p.calm.Load() && p.chance(3) {
			p.server.Kill(p.lose())
		}
		var renewal store.Renewal
		sent := time.Now()
		err := call(func(ctx context.Context) (err error) {
			renewal, err = p.store.Renew(ctx, []store.LeaseID{p.lease})
			return err
		})
		switch over := time.Now().After(p.until.Add(-3 * time.Second)); {
		case err == nil && len(renewal.Renewed) == 1:
			p.mu.Lock()
			p.until = sent.Add(leaseTime)
			p.mu.Unlock()
		case err == nil || over:
			lost := p.lose()
			p.persist(func(ctx context.Context) error { return p.store.Revoke(ctx, []store.LeaseID{lost}) })
			p.renewLease()
		}
		if p.chance(10) {
			_ = call(p.store.Sweep)
		}
	}
}

// turn gets a key once, and gives it back.
func (p *pod) turn() {
	for !p.try() {
		time.Sleep(p.upTo(500 * time.Millisecond))
	}
}

// try makes one attempt. It returns false if it did not get the key.
func (p *pod) try() bool {
	ask, wait := store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}}, !p.chance(20)
	switch n := p.below(100); {
	case n < 25:
		ask.Key = p.own
	case n < 30:
		ask.Key = ownKey(p.below(instances))
	case n < 55:
		ask.Key, ask.Shared, ask.Limit = sharedKey, p.chance(80), shareLimit
		if !ask.Shared {
			ask.Limit = 0
		}
	}
	if p.chance(20) {
		ask.TTL = leaseTime
	}
	if !ask.Shared && p.chance(20) {
		ask.MinHold = p.upTo(2 * time.Second)
	}
	news := make(chan store.News, 10)
	p.mu.Lock()
	ask.Lease = p.lease
	p.waits[ask.ID] = news
	p.held[ask.ID] = true
	ask.Last = p.last[ask.Key]
	recalls := p.recalls[ask.Key]
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waits, ask.ID)
	}()
	var answer store.Answer
	err := call(func(ctx context.Context) error {
		answers, err := p.ask(ctx, ask, wait)
		answer = answers[0]
		return err
	})
	if store.OutcomeUnknown(err) {
		p.withdraw(ask)
		return false
	}
	if err != nil {
		p.end(ask.ID, true)
		return false
	}
	if answer.Outcome == store.Queued {
		answer = p.wait(ask, answer, news)
	}
	if answer.Outcome != store.Granted {
		p.end(ask.ID, false)
		return false
	}
	time.Sleep(p.upTo(400 * time.Millisecond))
	c := store.Claim{Key: ask.Key, Token: answer.Token, Lease: ask.Lease}
	if ask.TTL > 0 {
		c.Lease = store.LeaseID{}
	}
	visible := answer.Token
	if answer.Keepable {
		c, visible = p.keep(ask, c, recalls)
	}
	for _, id := range append(c.Served, ask.ID) {
		p.end(id, false)
	}
	for range 1 + p.below(2) { // a release may be repeated after the next grant
		var verdicts []store.Verdict
		p.persist(func(ctx context.Context) (err error) {
			verdicts, err = p.store.Release(ctx, []store.Claim{c})
			return err
		})
		if verdicts[0].Status == store.Holds && !ask.Shared {
			p.mu.Lock()
			p.last[ask.Key] = visible
			p.mu.Unlock()
		}
	}
	return true
}

// keep gives the key to further sessions of this instance, each under a token of its own, while its lease is trusted and nobody recalls
// the key. It returns the claim that frees the key, and the token that the store knows.
func (p *pod) keep(ask store.Ask, first store.Claim, recalls int) (store.Claim, int64) {
	claim := first
	recalled := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.recalls[ask.Key] != recalls
	}
	for next := first.Token + 1; next-first.Token < store.TokensPerGrant && !recalled() && p.chance(90) && p.gives(ask, next); next += 1 + int64(p.below(90)) {
		claim = store.Claim{Key: ask.Key, Token: next, Lease: ask.Lease, Served: []store.AttemptID{uuid.New()}}
		time.Sleep(p.upTo(300 * time.Millisecond))
	}
	switch {
	case p.chance(20) && claim.Served != nil: // others shall see this session
		p.adopts(ask.ID, claim.Served[0])
		adoption := store.Adoption{Change: store.Change{Key: ask.Key, Token: claim.Token, Lease: ask.Lease}, Served: claim.Served, AcquiredAt: time.Now()}
		p.persist(func(ctx context.Context) error {
			_, err := p.store.Adopt(ctx, []store.Adoption{adoption})
			return err
		})
		return claim, claim.Token
	case p.chance(50): // the store knows only the first token
		return first, first.Token
	default:
		return claim, first.Token
	}
}

func (p *pod) withdraw(ask store.Ask) {
	p.trial.mu.Lock()
	p.withdraws[ask.ID] = true
	p.trial.mu.Unlock()
	p.end(ask.ID, false)
	p.persist(func(ctx context.Context) error {
		_, err := p.store.Withdraw(ctx, []store.Attempt{ask.Attempt})
		return err
	})
	p.end(ask.ID, true)
}

// wait waits for the grant, as a sidecar does: it checks after a hint, when the holder's lease is about to end, and
// seldom for no reason.
func (p *pod) wait(ask store.Ask, a store.Answer, news chan store.News) store.Answer {
	for {
		expires := max(10*time.Millisecond, min(a.Lock.Holder.ExpiresIn, 30*time.Second))
		select {
		case n := <-news:
			if n.Answer.Outcome != 0 {
				return n.Answer
			}
		case <-time.After(expires):
		}
		if p.chance(3) {
			p.withdraw(ask)
			return store.Answer{}
		}
		err := call(func(ctx context.Context) error {
			answers, err := p.store.Check(ctx, []store.Attempt{ask.Attempt})
			if err == nil {
				a = answers[0]
			}
			return err
		})
		if err == nil && a.Outcome != store.Queued {
			return a
		}
	}
}
