package storetest

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// batchSize is the largest number of items that callers put into one call.
const batchSize = 1000

func batchCases() []testCase {
	return []testCase{
		{"a call without items does nothing", emptyBatches},
		{"a thousand acquires are answered in their order", batchAcquire},
		{"a thousand waits and cancels are answered in their order", batchWaits},
		{"several attempts for one key are enqueued in the order of the batch", batchTogether},
		{"a repeat, a skipped waiter and a lost lease change no other position in a batch", batchWithRepeats},
		{"a thousand releases are judged in their order", batchRelease},
		{"a batch of releases hands off the keys that have waiters", batchHandsOff},
		{"a thousand leases are opened, renewed, and reaped", func(f *fixture) {
			in := f.instance("a")
			leases := make([]store.NewLease, batchSize)
			ids := make([]store.LeaseID, batchSize)
			for i := range leases {
				ids[i] = uuid.New()
				leases[i] = store.NewLease{ID: ids[i], TTL: longTTL}
			}
			if err := in.OpenLeases(in.ctx(), leases); err != nil {
				f.Fatal(err)
			}
			if alive := in.renew(ids...); len(alive) != batchSize {
				f.Fatalf("%d renewed, want %d", len(alive), batchSize)
			}
			in.revoke(ids[:batchSize/2]...)
			if alive := in.renew(ids...); len(alive) != batchSize/2 {
				f.Fatalf("%d renewed, want %d", len(alive), batchSize/2)
			}
		}},
	}
}

func emptyBatches(f *fixture) {
	in := f.instance("a")
	ctx := f.ctx()
	count := func(what string, n int, err error) {
		if n != 0 || err != nil {
			f.Errorf("%s of nothing: %d answers, %v", what, n, err)
		}
	}
	answers, err := in.Acquire(ctx, nil)
	count("Acquire", len(answers), err)
	answers, err = in.Enqueue(ctx, nil)
	count("Enqueue", len(answers), err)
	answers, err = in.Check(ctx, nil)
	count("Check", len(answers), err)
	answers, err = in.Cancel(ctx, nil)
	count("Cancel", len(answers), err)
	verdicts, err := in.Release(ctx, nil)
	count("Release", len(verdicts), err)
	amended, err := in.Amend(ctx, nil)
	count("Amend", len(amended), err)
	amended, err = in.Downgrade(ctx, nil)
	count("Downgrade", len(amended), err)
	amended, err = in.Adopt(ctx, nil)
	count("Adopt", len(amended), err)
	renewal, err := in.Renew(ctx, nil)
	count("Renew", len(renewal.Renewed), err)
	locks, err := in.Get(ctx, nil)
	count("Get", len(locks), err)
	count("OpenLeases", 0, in.OpenLeases(ctx, nil))
	count("Revoke", 0, in.Revoke(ctx, nil))
	count("ReapInstance", 0, in.ReapInstance(ctx, "nobody"))
	outcomes, err := in.Withdraw(ctx, nil)
	count("Withdraw", len(outcomes), err)
}

// batchKey returns keys whose order differs from that of i. A store that sorts its items must
// restore the order of the answers.
func batchKey(i int) string {
	return fmt.Sprintf("batch:%04d:%d", (i*617)%batchSize, i)
}

// batchOf returns an ask for each of size keys.
func (in *instance) batchOf(size int) []store.Ask {
	asks := make([]store.Ask, size)
	for i := range asks {
		asks[i] = in.ask(batchKey(i))
	}
	return asks
}

func (in *instance) acquireAll(asks []store.Ask) []store.Answer {
	in.Helper()
	answers, err := in.Acquire(in.ctx(), asks)
	if err != nil || len(answers) != len(asks) {
		in.Fatalf("Acquire of %d: %d answers, %v", len(asks), len(answers), err)
	}
	return answers
}

func batchAcquire(f *fixture) {
	a, b := f.pair()
	var theirs []store.Ask
	for i, ask := range b.batchOf(batchSize) {
		if i%3 == 0 {
			theirs = append(theirs, ask)
		}
	}
	tokens := map[string]int64{}
	for i, answer := range b.acquireAll(theirs) {
		tokens[theirs[i].Key] = b.want(answer, store.Granted).Token
	}
	dead := a.openLease(longTTL)
	a.revoke(dead)
	asks := a.batchOf(batchSize)
	for i := range asks {
		switch i % 3 {
		case 1:
			asks[i].Lease = dead
		case 2:
			if i%2 == 0 { // every second ask is bind:ttl
				asks[i].Lease, asks[i].TTL = store.LeaseID{}, longTTL
			}
		}
		asks[i].Data = fmt.Appendf(nil, "%d", i)
	}
	want := []store.Outcome{store.Held, store.LeaseLost, store.Granted}
	for i, answer := range a.acquireAll(asks) {
		a.want(answer, want[i%3])
		key := asks[i].Key
		if i%3 == 0 && (answer.Lock.Key != key || answer.Lock.Token != tokens[key]) {
			f.Fatalf("answer %d names %q under %d, want %q under %d",
				i, answer.Lock.Key, answer.Lock.Token, key, tokens[key])
		}
		if i%3 == 2 {
			tokens[key] = answer.Token
		}
	}
	keys := make([]string, batchSize)
	for i := range keys {
		keys[i] = batchKey(i)
	}
	locks, err := a.Get(f.ctx(), keys)
	if err != nil || len(locks) != batchSize {
		f.Fatalf("Get: %d locks, %v", len(locks), err)
	}
	for i, l := range locks {
		if l.Key != keys[i] || l.Held != (i%3 != 1) || l.Token != tokens[keys[i]] && l.Held {
			f.Fatalf("lock %d: %+v, want token %d", i, l, tokens[keys[i]])
		}
		if i%3 == 2 {
			f.sameJSON(l.Holder.Data, fmt.Sprint(i))
		}
	}
}

func batchWaits(f *fixture) {
	a, b := f.pair()
	const size = 300
	var held []store.Ask
	for i, ask := range a.batchOf(size) {
		if i%3 != 0 {
			held = append(held, ask)
		}
	}
	grants := a.acquireAll(held)
	waits := b.batchOf(size)
	answers, err := b.Enqueue(f.ctx(), waits)
	if err != nil || len(answers) != size {
		f.Fatalf("Enqueue: %d answers, %v", len(answers), err)
	}
	for i, answer := range answers {
		b.want(answer, []store.Outcome{store.Granted, store.Queued, store.Queued}[i%3])
	}
	var claims []store.Claim
	for i, ask := range held {
		if i%2 == 0 { // the first of each pair of held keys: i%3 == 1
			claims = append(claims, claim(ask, grants[i].Token))
		}
	}
	if _, err := a.Release(f.ctx(), claims); err != nil {
		f.Fatal(err)
	}
	attempts := make([]store.Attempt, size)
	for i, w := range waits {
		attempts[i] = w.Attempt
	}
	checked, err := b.Check(f.ctx(), attempts)
	if err != nil {
		f.Fatal(err)
	}
	cancelled, err := b.Cancel(f.ctx(), attempts)
	if err != nil || len(checked) != size || len(cancelled) != size {
		f.Fatalf("%d checked, %d cancelled, %v", len(checked), len(cancelled), err)
	}
	for i := range size {
		b.want(checked[i], []store.Outcome{store.Granted, store.Granted, store.Queued}[i%3])
		b.want(cancelled[i], []store.Outcome{store.Granted, store.Granted, store.Gone}[i%3])
		if cancelled[i].Token != checked[i].Token {
			f.Fatalf("item %d: tokens %d and %d of one grant", i, checked[i].Token, cancelled[i].Token)
		}
	}
	withdrawn, err := b.Withdraw(f.ctx(), attempts)
	if err != nil || len(withdrawn) != size {
		f.Fatalf("%d withdrawn, %v", len(withdrawn), err)
	}
	for i, outcome := range withdrawn {
		if outcome != store.Gone {
			f.Fatalf("item %d: withdrawn: %s", i, name(outcome))
		}
	}
	b.lists(store.Query{Limit: 1, Instance: b.id.Instance})
}

// enqueueAll enqueues asks in one call and checks their outcomes and positions. Position 0 stands
// for an ask that is not queued.
func (in *instance) enqueueAll(asks []store.Ask, outcomes []store.Outcome, positions []int) []store.Answer {
	in.Helper()
	answers, err := in.Enqueue(in.ctx(), asks)
	if err != nil || len(answers) != len(asks) {
		in.Fatalf("Enqueue: %d answers, %v", len(answers), err)
	}
	for i, a := range answers {
		if in.want(a, outcomes[i]); a.Position != positions[i] {
			in.Fatalf("item %d: position %d, want %d", i, a.Position, positions[i])
		}
	}
	return answers
}

func batchTogether(f *fixture) {
	a, b := f.pair()
	holders := []store.Ask{a.ask("k"), a.ask("m")}
	grants := a.acquireAll(holders)
	before := a.ask("k")
	a.queued(before, 1)
	line := []store.Ask{b.ask("k"), b.ask("m"), b.ask("free"), b.ask("k"), b.askTTL("m", longTTL), b.ask("k"), b.ask("free")}
	line[4].Lease = b.lease
	const g, q = store.Granted, store.Queued
	answers := b.enqueueAll(line, []store.Outcome{q, q, g, q, q, q, q}, []int{2, 1, 0, 3, 2, 4, 1})
	for i, key := range []int{0, 1, -1, 0, 1, 0, -1} {
		if key >= 0 && (answers[i].Lock.Token != grants[key].Token || answers[i].Lock.Holder.Instance != a.id.Instance) {
			f.Fatalf("item %d waits for %+v, want that of a", i, answers[i].Lock)
		}
	}
	a.holds("k", grants[0].Token, 4)
	a.released(claim(holders[0], grants[0].Token))
	token := a.awaitNews(before).Token
	for n, i := range []int{0, 3, 5} {
		in := b
		if n == 0 {
			in = a
		}
		in.released(store.Claim{Key: "k", Token: token, Lease: in.lease})
		token = b.awaitNews(line[i]).Token
	}
}

func batchWithRepeats(f *fixture) {
	a, b := f.pair()
	holder, other := a.ask("k"), b.ask("m")
	token := a.granted(holder).Token
	mine := b.granted(other)
	waits := b.ask("k")
	b.queued(waits, 1)
	skipped := b.skippedWaiter("s", `"done"`)
	dead := b.openLease(longTTL)
	b.revoke(dead)
	line := []store.Ask{b.ask("k"), waits, b.askUnder(dead, "k"), b.ask("m"), skipped, other, b.ask("k"), b.ask("m")}
	const g, q, s, l = store.Granted, store.Queued, store.Skipped, store.LeaseLost
	answers := b.enqueueAll(line, []store.Outcome{q, q, l, q, s, g, q, q}, []int{2, 1, 0, 1, 0, 0, 3, 2})
	b.sameGrant(mine, answers[5])
	a.holds("k", token, 3)
	b.enqueueAll(line, []store.Outcome{q, q, l, q, s, g, q, q}, []int{2, 1, 0, 1, 0, 0, 3, 2})
	a.holds("k", token, 3)
}

func batchRelease(f *fixture) {
	a := f.instance("a")
	asks := a.batchOf(batchSize)
	claims := make([]store.Claim, batchSize)
	changes := make([]store.Change, batchSize)
	for i, answer := range a.acquireAll(asks) {
		claims[i] = claim(asks[i], a.want(answer, store.Granted).Token)
		switch i % 3 {
		case 1:
			claims[i].Lease = store.LeaseID{}
		case 2:
			claims[i].Token++
		}
		changes[i] = store.Change{Key: claims[i].Key, Token: claims[i].Token, Lease: claims[i].Lease, SetData: true, Data: fmt.Appendf(nil, "%d", i)}
	}
	want := []store.ClaimStatus{store.Holds, store.OtherSession, store.UnknownToken}
	amended, err := a.Amend(f.ctx(), changes)
	if err != nil || len(amended) != batchSize {
		f.Fatalf("Amend: %d verdicts, %v", len(amended), err)
	}
	released, err := a.Release(f.ctx(), claims)
	if err != nil || len(released) != batchSize {
		f.Fatalf("Release: %d verdicts, %v", len(released), err)
	}
	for i := range claims {
		a.wantAmended(amended[i:i+1], nil, want[i%3])
		a.stands(released[i], want[i%3])
		if i%3 == 0 {
			f.sameJSON(amended[i].Lock.Holder.Data, fmt.Sprint(i))
		}
	}
	again, err := a.Release(f.ctx(), claims)
	if err != nil {
		f.Fatal(err)
	}
	for i := range claims {
		a.stands(again[i], []store.ClaimStatus{store.Released, store.OtherSession, store.UnknownToken}[i%3])
	}
}

func batchHandsOff(f *fixture) {
	a, b := f.pair()
	free, wanted, waiter := a.ask("free"), a.ask("wanted"), b.ask("wanted")
	claims := []store.Claim{claim(free, a.granted(free).Token), claim(wanted, a.granted(wanted).Token)}
	b.queued(waiter, 1)
	verdicts, err := a.Release(f.ctx(), claims)
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range verdicts {
		a.stands(v, store.Holds)
	}
	b.holds("wanted", b.want(b.check(waiter), store.Granted).Token, 0)
	a.granted(a.ask("free"))
}
