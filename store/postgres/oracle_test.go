package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// oracleTick is the tick of the model's runs: see [storetest.RunModel].
const oracleTick = time.Minute

// TestOracle compares the SQL with the key machine (store/key, by store/memory). Random runs of the suite's model are
// recorded on PostgreSQL. Then the machine does the same in virtual time, and each answer must be the same. TestModel
// compares both with the suite's model instead, which leaves some answers open.
func TestOracle(t *testing.T) {
	t.Parallel()
	open := newAging(t, postgres.ListenAlways)
	var runs []*recording
	storetest.RunModel(t, oracleTick, func() storetest.Aging {
		runs = append(runs, &recording{aging: open()})
		return runs[len(runs)-1]
	})
	compared := 0
	for _, run := range runs {
		synctest.Test(t, func(t *testing.T) { compared += run.repeat(t) })
	}
	if compared < 100 {
		t.Errorf("%d answers were compared, want at least 100", compared)
	}
	t.Logf("%d answers of %d runs are the same", compared, len(runs))
}

// recording is a database that notes what is done to it.
type recording struct {
	aging
	ids   []store.Identity
	steps []step
}

// step is one operation. do repeats it on the machine, and returns how the answer differs, or "".
type step struct {
	what string
	do   func(*oracle) (difference string, err error)
	err  error // what PostgreSQL answered
}

func (r *recording) Open(id store.Identity) store.Store {
	r.ids = append(r.ids, id)
	return recorded{Store: r.aging.Open(id).(*postgres.Store), to: r, n: len(r.ids) - 1}
}

func (r *recording) Age(d time.Duration) {
	r.aging.Age(d)
	r.steps = append(r.steps, step{what: fmt.Sprint("age ", d), do: func(*oracle) (string, error) { time.Sleep(d); return "", nil }})
}

// repeat does the steps on the machine, and returns how many there were.
func (r *recording) repeat(t *testing.T) int {
	t.Helper()
	o := &oracle{tokens: map[grantOf]int64{}, signals: map[store.SignalID]store.SignalID{}, held: map[grantOf]bool{}, forgot: map[grantOf]bool{}}
	space := memory.NewSpace()
	for _, id := range r.ids {
		s := space.Open(id)
		if err := s.Start(t.Context(), func(store.News) {}); err != nil {
			t.Fatal(err)
		}
		o.stores = append(o.stores, s)
	}
	for i, s := range r.steps {
		difference, err := s.do(o)
		if (err == nil) != (s.err == nil) {
			difference = fmt.Sprintf("PostgreSQL answers with error %v, the machine with error %v", s.err, err)
		}
		if difference != "" {
			t.Fatalf("%s\nthe steps:\n%s", difference, r.listed(i))
		}
	}
	return len(r.steps)
}

// listed lists the steps up to the last one, without the reads.
func (r *recording) listed(last int) string {
	var b bytes.Buffer
	for i, s := range r.steps[:last+1] {
		if i == last || s.what != "get" {
			fmt.Fprintf(&b, "%d. %s\n", i, s.what)
		}
	}
	return b.String()
}

// oracle is the key machine, and what it calls the tokens and signals of PostgreSQL.
type oracle struct {
	stores  []*memory.Store
	tokens  map[grantOf]int64
	signals map[store.SignalID]store.SignalID
	held    map[grantOf]bool // as the last read says
	forgot  map[grantOf]bool // the grant is keepable only in the machine
}

type grantOf struct {
	key   string
	token int64
}

// wrong is the token of no grant.
const wrong = 1 << 52

// token translates a token of PostgreSQL.
func (o *oracle) token(key string, token int64) int64 {
	if is, known := o.tokens[grantOf{key, token}]; known || token == 0 {
		return is
	}
	return wrong
}

// same notes that two tokens name one grant, and reports whether that is true.
func (o *oracle) same(key string, got, machine int64) bool {
	g := grantOf{key, got}
	if is, known := o.tokens[g]; known {
		return is == machine
	}
	if got != 0 && machine != 0 {
		o.tokens[g] = machine
	}
	return (got == 0) == (machine == 0)
}

// holds reports whether a token of the machine is that of a present grant.
func (o *oracle) holds(key string, machine int64) bool {
	for g, held := range o.held {
		if held && g.key == key && o.tokens[g] == machine {
			return true
		}
	}
	return false
}

// near compares remaining times. PostgreSQL's clock advances during a run.
func near(got, machine time.Duration) bool { return got > machine-oracleTick && got <= machine }

func (o *oracle) claim(c store.Claim) store.Claim {
	c.Token = o.token(c.Key, c.Token)
	return c
}

func (o *oracle) asks(asks []store.Ask) []store.Ask {
	its := slices.Clone(asks)
	for i, a := range asks {
		its[i].Last = o.token(a.Key, a.Last)
	}
	return its
}

// keeps compares whether a grant is keepable. PostgreSQL may have forgotten the last grant, or that a watch is over.
func (o *oracle) keeps(of grantOf, got, machine bool) bool {
	if machine && !got {
		o.forgot[of] = true
	}
	return machine || !got
}

func (o *oracle) answers(asked []store.Attempt, got, machine []store.Answer) string {
	for i, a := range asked {
		g, m := got[i], machine[i]
		ok := g.Outcome == m.Outcome
		if ok {
			switch g.Outcome {
			case store.Granted:
				ok = o.same(a.Key, g.Token, m.Token) && g.Slot == m.Slot && near(g.ExpiresIn, m.ExpiresIn) &&
					o.keeps(grantOf{a.Key, g.Token}, g.Keepable, m.Keepable)
			case store.Skipped:
				ok = bytes.Equal(g.Result, m.Result)
			case store.Gone:
				ok = g.Position == m.Position
			case store.Queued:
				// Only an Acquire must return the position and the length.
				ok = g.Position == 0 || g.Position == m.Position && g.Lock.QueueLength == m.Lock.QueueLength
				ok = ok && o.blockers(g.Lock, m.Lock)
			case store.Held, store.LimitMismatch:
				ok = o.blockers(g.Lock, m.Lock)
			}
		}
		if !ok {
			return fmt.Sprintf("attempt %+v:\nPostgreSQL  %+v\nthe machine %+v", a, g, m)
		}
	}
	return ""
}

func (o *oracle) blockers(g, m store.Lock) bool {
	return o.same(g.Key, g.Token, m.Token) && g.Shared == m.Shared && g.HoldersCount == m.HoldersCount && g.Limit == m.Limit &&
		(g.Kept == m.Kept || o.forgot[grantOf{g.Key, g.Token}])
}

// verdicts compares statuses. Of a grant that is over, each engine may have forgotten how it ended.
// statuses compares the answers to claims.
func statuses[Claim, Answer any](claims []Claim, got, machine []Answer, status func(Answer) store.ClaimStatus) string {
	over := []store.ClaimStatus{store.Released, store.Expired, store.UnknownToken}
	for i, c := range claims {
		g, m := status(got[i]), status(machine[i])
		forgotten := slices.Contains(over, g) && slices.Contains(over, m) && (g == store.UnknownToken || m == store.UnknownToken)
		if g != m && !forgotten {
			return fmt.Sprintf("claim %+v:\nPostgreSQL  %+v\nthe machine %+v", c, got[i], machine[i])
		}
	}
	return ""
}

func (o *oracle) locks(got, machine []store.Lock) string {
	clear(o.held)
	for i, g := range got {
		o.held[grantOf{g.Key, g.Token}] = g.Held
		for _, h := range g.Holders {
			o.held[grantOf{g.Key, h.Token}] = true
		}
		m := machine[i]
		ok := g.Held == m.Held && g.QueueLength == m.QueueLength
		if g.Held {
			ok = ok && o.blockers(g, m) && len(g.Holders) == len(m.Holders) && o.holders(g.Holder, m.Holder) && sameStop(g.Stopping, m.Stopping)
			for n := range min(len(g.Holders), len(m.Holders)) {
				a, b := g.Holders[n], m.Holders[n]
				ok = ok && o.same(g.Key, a.Token, b.Token) && a.Slot == b.Slot && o.holders(a.Holder, b.Holder) && sameStop(a.Stopping, b.Stopping)
			}
		} else if g.Token != 0 && m.Token != 0 { // a sweep may have forgotten it
			ok = ok && o.same(g.Key, g.Token, m.Token) && g.Expired == m.Expired
		}
		if !ok {
			return fmt.Sprintf("key %s:\nPostgreSQL  %+v\nthe machine %+v", g.Key, g, m)
		}
	}
	return ""
}

// holders compares holders. Behind a pending hold, PostgreSQL no longer knows the dead lease.
func (o *oracle) holders(g, m store.Holder) bool {
	return g.Instance == m.Instance && g.Session == m.Session && g.Owner == m.Owner && (g.Renewed == m.Renewed || g.HoldPending) &&
		g.HoldPending == m.HoldPending && near(g.ExpiresIn, m.ExpiresIn) && bytes.Equal(g.Data, m.Data)
}

func sameStop(g, m *store.Stopping) bool {
	return (g == nil) == (m == nil) && (g == nil || sameText(g.Reason, m.Reason))
}

func sameText(g, m *string) bool { return (g == nil) == (m == nil) && (g == nil || *g == *m) }

// recorded is an instance whose operations are noted.
type recorded struct {
	*postgres.Store
	to *recording
	n  int
}

func (r recorded) note(what string, err error, do func(*memory.Store, *oracle) (string, error)) {
	r.to.steps = append(r.to.steps, step{what, func(o *oracle) (string, error) { return do(o.stores[r.n], o) }, err})
}

func (r recorded) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	err := r.Store.OpenLeases(ctx, leases)
	r.note(fmt.Sprintf("open %+v", leases), err, func(s *memory.Store, _ *oracle) (string, error) {
		return "", s.OpenLeases(context.Background(), leases)
	})
	return err
}

func (r recorded) Renew(ctx context.Context, leases []store.LeaseID) (store.Renewal, error) {
	got, err := r.Store.Renew(ctx, leases)
	renewed, leases := sorted(got.Renewed), slices.Clone(leases)
	r.note("renew", err, func(s *memory.Store, _ *oracle) (string, error) {
		machine, err := s.Renew(context.Background(), leases)
		if !slices.Equal(renewed, sorted(machine.Renewed)) {
			return fmt.Sprintf("renewed:\nPostgreSQL  %v\nthe machine %v", renewed, machine.Renewed), nil
		}
		return "", err
	})
	return got, err
}

func sorted(ids []store.LeaseID) []store.LeaseID {
	return slices.SortedFunc(slices.Values(ids), func(a, b store.LeaseID) int { return bytes.Compare(a[:], b[:]) })
}

func (r recorded) Revoke(ctx context.Context, leases []store.LeaseID) error {
	err := r.Store.Revoke(ctx, leases)
	r.note(fmt.Sprintf("revoke %v", leases), err, func(s *memory.Store, _ *oracle) (string, error) {
		return "", s.Revoke(context.Background(), leases)
	})
	return err
}

func (r recorded) ReapInstance(ctx context.Context, instance string) error {
	err := r.Store.ReapInstance(ctx, instance)
	r.note("reap "+instance, err, func(s *memory.Store, _ *oracle) (string, error) {
		return "", s.ReapInstance(context.Background(), instance)
	})
	return err
}

func (r recorded) Sweep(ctx context.Context) error {
	err := r.Store.Sweep(ctx)
	r.note("sweep", err, func(s *memory.Store, _ *oracle) (string, error) { return "", s.Sweep(context.Background()) })
	return err
}

func (r recorded) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	got, err := r.Store.Acquire(ctx, asks)
	r.note(fmt.Sprintf("acquire %+v", asks), err, func(s *memory.Store, o *oracle) (string, error) {
		machine, err := s.Acquire(context.Background(), o.asks(asks))
		return o.answers(attemptsOf(asks), got, machine), err
	})
	return got, err
}

func (r recorded) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	got, err := r.Store.Enqueue(ctx, asks)
	r.note(fmt.Sprintf("enqueue %+v", asks), err, func(s *memory.Store, o *oracle) (string, error) {
		machine, err := s.Enqueue(context.Background(), o.asks(asks))
		return o.answers(attemptsOf(asks), got, machine), err
	})
	return got, err
}

func attemptsOf(asks []store.Ask) []store.Attempt {
	attempts := make([]store.Attempt, len(asks))
	for i := range asks {
		attempts[i] = asks[i].Attempt
	}
	return attempts
}

func (r recorded) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	got, err := r.Store.Check(ctx, waits)
	r.note(fmt.Sprintf("check %+v", waits), err, func(s *memory.Store, o *oracle) (string, error) {
		machine, err := s.Check(context.Background(), waits)
		return o.answers(waits, got, machine), err
	})
	return got, err
}

func (r recorded) Cancel(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	got, err := r.Store.Cancel(ctx, waits)
	r.note(fmt.Sprintf("cancel %+v", waits), err, func(s *memory.Store, o *oracle) (string, error) {
		machine, err := s.Cancel(context.Background(), waits)
		return o.answers(waits, got, machine), err
	})
	return got, err
}

func (r recorded) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	got, err := r.Store.Withdraw(ctx, attempts)
	r.note(fmt.Sprintf("withdraw %+v", attempts), err, func(s *memory.Store, _ *oracle) (string, error) {
		machine, err := s.Withdraw(context.Background(), attempts)
		if !slices.Equal(got, machine) {
			return fmt.Sprintf("withdrawn: PostgreSQL %v, the machine %v", got, machine), nil
		}
		return "", err
	})
	return got, err
}

func (r recorded) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	got, err := r.Store.Release(ctx, claims)
	r.note(fmt.Sprintf("release %+v", claims), err, func(s *memory.Store, o *oracle) (string, error) {
		its := make([]store.Claim, len(claims))
		for i, c := range claims {
			its[i] = o.claim(c)
		}
		machine, err := s.Release(context.Background(), its)
		return statuses(claims, got, machine, func(v store.Verdict) store.ClaimStatus { return v.Status }), err
	})
	return got, err
}

func (r recorded) Amend(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	got, err := r.Store.Amend(ctx, changes)
	r.noteAmend("amend", changes, got, err, (*memory.Store).Amend)
	return got, err
}

func (r recorded) Downgrade(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	got, err := r.Store.Downgrade(ctx, changes)
	r.noteAmend("downgrade", changes, got, err, (*memory.Store).Downgrade)
	return got, err
}

func (r recorded) noteAmend(
	name string, changes []store.Change, got []store.Amended, err error,
	by func(*memory.Store, context.Context, []store.Change) ([]store.Amended, error),
) {
	r.note(fmt.Sprintf("%s %+v", name, changes), err, func(s *memory.Store, o *oracle) (string, error) {
		its := slices.Clone(changes)
		for i, c := range changes {
			its[i].Token = o.token(c.Key, c.Token)
		}
		machine, err := by(s, context.Background(), its)
		return statuses(changes, got, machine, func(a store.Amended) store.ClaimStatus { return a.Status }), err
	})
}

// pass lets the machine hand on a key whose hold is over, by an ask in vain. PostgreSQL may have done so in an operation that need
// not: a second revocation of the holder's lease, or a repeated release with success. In the machine, only asks and checks do.
// If the key is not due, the ask changes nothing, or gets a key that is not free on PostgreSQL.
func pass(s *memory.Store, key string) error {
	_, err := s.Acquire(context.Background(), []store.Ask{{Attempt: store.Attempt{Key: key, ID: uuid.New()}, TTL: time.Hour}})
	return err
}

func (r recorded) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	got, err := r.Store.Get(ctx, keys)
	r.note("get", err, func(s *memory.Store, o *oracle) (string, error) {
		machine, err := s.Get(context.Background(), keys)
		for i, g := range got {
			if err == nil && g.QueueLength < machine[i].QueueLength {
				err = pass(s, keys[i])
			}
		}
		if err == nil {
			machine, err = s.Get(context.Background(), keys)
		}
		return o.locks(got, machine), err
	})
	return got, err
}

func (r recorded) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	got, err := r.Store.Signal(ctx, signals)
	r.note(fmt.Sprintf("signal %+v", signals), err, func(s *memory.Store, o *oracle) (string, error) {
		its := slices.Clone(signals)
		for i, g := range its {
			if g.Token != 0 {
				its[i].Token = o.token(g.Key, g.Token)
			}
		}
		machine, err := s.Signal(context.Background(), its)
		if !slices.Equal(got, machine) {
			return fmt.Sprintf("signals: PostgreSQL %v, the machine %v", got, machine), nil
		}
		return "", err
	})
	return got, err
}

func (r recorded) Signals(ctx context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	got, err := r.Store.Signals(ctx, leases)
	all := slices.Clone(got) // the caller deletes some
	r.note(fmt.Sprintf("signals of %v", leases), err, func(s *memory.Store, o *oracle) (string, error) {
		machine, err := s.Signals(context.Background(), leases)
		matched := 0
		for _, g := range all {
			i := slices.IndexFunc(machine, func(m store.Signal) bool {
				return m.Kind == g.Kind && m.Key == g.Key && m.Token == o.token(g.Key, g.Token) && sameText(g.Reason, m.Reason)
			})
			if i >= 0 {
				o.signals[g.ID] = machine[i].ID
				matched++
			} else if o.held[grantOf{g.Key, g.Token}] {
				return fmt.Sprintf("signals: the machine lacks one:\nPostgreSQL  %+v\nthe machine %+v", all, machine), nil
			}
		}
		// A signal whose grant is over may be left.
		over := func(m store.Signal) bool { return !o.holds(m.Key, m.Token) }
		if left := slices.DeleteFunc(machine, over); len(left) > matched {
			return fmt.Sprintf("signals: PostgreSQL lacks one:\nPostgreSQL  %+v\nthe machine %+v", all, left), nil
		}
		return "", err
	})
	return got, err
}

func (r recorded) Acknowledge(ctx context.Context, signals []store.SignalID) error {
	err := r.Store.Acknowledge(ctx, signals)
	r.note("acknowledge", err, func(s *memory.Store, o *oracle) (string, error) {
		its := make([]store.SignalID, len(signals))
		for i, id := range signals {
			its[i] = o.signals[id]
		}
		return "", s.Acknowledge(context.Background(), its)
	})
	return err
}

func (r recorded) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	err := r.Store.Watch(ctx, keys, lease)
	r.note(fmt.Sprintf("watch %v", keys), err, func(s *memory.Store, _ *oracle) (string, error) {
		return "", s.Watch(context.Background(), keys, lease)
	})
	return err
}

func (r recorded) Unwatch(ctx context.Context, keys []string) error {
	err := r.Store.Unwatch(ctx, keys)
	r.note(fmt.Sprintf("unwatch %v", keys), err, func(s *memory.Store, _ *oracle) (string, error) {
		return "", s.Unwatch(context.Background(), keys)
	})
	return err
}
