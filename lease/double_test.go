package lease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// double is a memory store whose operations can be made to fail, hang and be slow, each by its
// name. It counts its calls.
type double struct {
	*memory.Store
	traits store.Traits

	mu       sync.Mutex
	faults   map[string]*fault
	calls    map[string]int
	items    map[string]int
	most     map[string]int // items in one call
	attempts map[store.Attempt]bool
	dropNews bool
	// onKeeping, if set, hears whether keys are kept.
	onKeeping func(bool)
	// onTraits, if set, runs once, after the traits were read.
	onTraits func()
	// dropRecalls loses the recalls of kept keys.
	dropRecalls bool
	listens     []listened
	// placeless are operations that do not return queue positions.
	placeless map[string]bool
	isAway    bool
	// locked are keys whose rows are locked by another transaction.
	locked map[string]bool
	// blocked delays checks that contain such a key.
	blocked map[string]chan struct{}
	// checking is the current number of checks, checkingMost the greatest.
	checking, checkingMost int
	// handOffs, if set, is shared by all sidecars of a test.
	handOffs *handOffs
	// quiet, if not 0, is the remaining quiet time that asks without a wait are answered with.
	quiet time.Duration
	// history is that of the store. openedIn are the histories in which leases were opened.
	history  store.History
	openedIn map[store.LeaseID]store.History
	// enqueued are the asks of the last Enqueue.
	enqueued []store.Ask
	// unsettled is the number of the next withdrawals that are not final.
	unsettled atomic.Int32
}

// listened is one call of Listen, and the number of enqueues before it.
type listened struct {
	on       bool
	enqueues int
}

// fault describes what happens to an operation.
type fault struct {
	// times limits the fault to so many calls. 0: until lift.
	times int
	// items limits the fault to calls with at least so many items.
	items int
	// before and after are delays around the operation.
	before, after time.Duration
	// gate delays the operation, and held delays its answer.
	gate, held chan struct{}
	// refuse: the operation is not carried out, with a known outcome. lose: it is not carried out.
	// forget: it is carried out. The outcome of the last two is unknown.
	refuse, lose, forget bool
	// late: an operation that is lost is carried out after this time, because it was in a buffer. So each operation copies
	// its items.
	late time.Duration
	// first runs before the operation, then after it.
	first, then func()
}

var errBroken = errors.New("broken on purpose")

func newDouble(inner *memory.Store) *double {
	return &double{
		Store: inner, faults: map[string]*fault{}, calls: map[string]int{}, items: map[string]int{},
		most: map[string]int{}, attempts: map[store.Attempt]bool{}, openedIn: map[store.LeaseID]store.History{},
	}
}

func (d *double) Traits() store.Traits {
	d.mu.Lock()
	traits, then := d.traits, d.onTraits
	d.onTraits = nil
	d.mu.Unlock()
	if then != nil {
		then()
	}
	return traits
}

// atTraits runs f once, in the goroutine that reads the traits next.
func (d *double) atTraits(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onTraits = f
}

// polls sets whether the store sends news. This changes only the trait.
func (d *double) polls(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.traits.Polls = on
}

// lockRows locks the rows of these keys, and unlocks all others.
func (d *double) lockRows(keys ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.locked = map[string]bool{}
	for _, k := range keys {
		d.locked[k] = true
	}
}

// unlessLocked asks for the items whose rows are not locked.
func unlessLocked[T, R any](d *double, items []T, key func(T) string, locked R, ask func([]T) ([]R, error)) ([]R, error) {
	var free []T
	var at []int
	out := make([]R, len(items))
	d.mu.Lock()
	for i, item := range items {
		if out[i] = locked; !d.locked[key(item)] {
			free, at = append(free, item), append(at, i)
		}
	}
	d.mu.Unlock()
	answers, err := ask(free)
	for i, a := range answers {
		out[at[i]] = a
	}
	return out, err
}

func keyOf(a store.Attempt) string { return a.Key }

// awaitBlocked waits while one of the keys is blocked.
func (d *double) awaitBlocked(ctx context.Context, waits []store.Attempt) error {
	d.mu.Lock()
	d.checking++
	d.checkingMost = max(d.checkingMost, d.checking)
	var gate chan struct{}
	for _, w := range waits {
		if g := d.blocked[w.Key]; g != nil {
			gate = g
		}
	}
	d.mu.Unlock()
	err := pause(ctx, 0, gate)
	d.mu.Lock()
	d.checking--
	d.mu.Unlock()
	return err
}

// losesRecalls sets whether recalls are lost.
func (d *double) losesRecalls(so bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropRecalls = so
}

// Keeping implements [store.Keeper].
func (d *double) Keeping(on bool) {
	if d.onKeeping != nil {
		d.onKeeping(on)
	}
}

// hears sets whether recalls arrive soon. This changes only the trait.
func (d *double) hears(so bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.traits.Hears = so
}

// away makes the store report that it is not ready.
func (d *double) away(away bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isAway = away
}

// setQuiet begins or ends a quiet time.
func (d *double) setQuiet(quiet time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.quiet = quiet
}

// Quiet implements [store.Quieter].
func (d *double) Quiet() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.quiet
}

func (d *double) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isAway {
		return errBroken
	}
	return d.Store.Ready()
}

// noPlaces makes operations return no queue positions.
func (d *double) noPlaces(ops ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.placeless = map[string]bool{}
	for _, op := range ops {
		d.placeless[op] = true
	}
}

// unplaced removes the queue positions from the answers of a placeless operation.
func (d *double) unplaced(op string, answers []store.Answer, err error) ([]store.Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range answers {
		if d.placeless[op] {
			answers[i].Position = 0
		}
	}
	return answers, err
}

// blockChecks delays the checks of these keys until the returned function is called.
func (d *double) blockChecks(keys ...string) (unblock func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.blocked = map[string]chan struct{}{}
	for _, k := range keys {
		d.blocked[k] = gate
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.blocked = nil
		close(gate)
	}
}

func (d *double) Start(ctx context.Context, hear func(store.News)) error {
	return d.Store.Start(ctx, func(n store.News) {
		d.mu.Lock()
		drop := d.dropNews || n.Recall && d.dropRecalls
		d.mu.Unlock()
		if !drop {
			d.handOffs.tell(n.Key, &n.Answer)
			hear(n)
		}
	})
}

// set adds a fault to an operation.
func (d *double) set(op string, f fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[op] = &f
}

func (d *double) lift(ops ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range ops {
		delete(d.faults, op)
	}
}

// everyOp are the operations that a manager uses.
var everyOp = []string{
	"OpenLeases", "Renew", "Revoke", "ReapInstance", "Sweep", "Acquire", "Enqueue", "Check", "Cancel", "Withdraw",
	"Release", "Amend", "Downgrade", "Adopt", "Get", "List", "Signal", "Signals", "Acknowledge", "Watch", "Unwatch", "HeldUnder", "Move",
}

func (d *double) setAll(f fault) {
	for _, op := range everyOp {
		d.set(op, f)
	}
}

// hold delays an operation until the returned function is called.
func (d *double) hold(op string) (release func()) {
	gate := make(chan struct{})
	d.set(op, fault{gate: gate})
	return func() {
		d.lift(op)
		close(gate)
	}
}

// holdAnswer delays the answer of an operation.
func (d *double) holdAnswer(op string) (release func()) {
	gate := make(chan struct{})
	d.set(op, fault{held: gate})
	return func() {
		d.lift(op)
		close(gate)
	}
}

// count returns the number of calls of an operation, asked the number of their items, and largest
// the most items in one call. total adds the calls of all operations.
func (d *double) count(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[op]
}

func (d *double) total() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	sum := 0
	for _, n := range d.calls {
		sum += n
	}
	return sum
}

func (d *double) asked(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.items[op]
}

func (d *double) largest(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most[op]
}

func (d *double) begin(op string, items int) fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[op]++
	d.items[op] += items
	d.most[op] = max(d.most[op], items)
	f := d.faults[op]
	if f == nil || items < f.items {
		return fault{}
	}
	if f.times > 0 {
		if f.times--; f.times == 0 {
			delete(d.faults, op)
		}
	}
	return *f
}

func pause(ctx context.Context, d time.Duration, gate chan struct{}) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func do[R any](ctx context.Context, d *double, op string, items int, f func(context.Context) (R, error)) (R, error) {
	what := d.begin(op, items)
	var none R
	if err := pause(ctx, what.before, what.gate); err != nil {
		return none, &store.Error{Op: op, Err: err, Unknown: true} // the operation may still arrive
	}
	if what.lose && what.late > 0 {
		go func() {
			time.Sleep(what.late)
			_, _ = f(context.Background())
		}()
	}
	if what.refuse || what.lose {
		return none, &store.Error{Op: op, Err: errBroken, Unknown: what.lose}
	}
	if what.first != nil {
		what.first()
	}
	r, err := f(context.WithoutCancel(ctx))
	if what.then != nil {
		what.then()
	}
	if err := pause(ctx, what.after, what.held); err != nil {
		return none, &store.Error{Op: op, Err: err, Unknown: true}
	}
	if what.forget {
		return none, &store.Error{Op: op, Err: errBroken, Unknown: true}
	}
	return r, err
}

func (d *double) remember(asks []store.Ask) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range asks {
		d.attempts[a.Attempt] = true
	}
}

func (d *double) Revoke(ctx context.Context, leases []store.LeaseID) error {
	leases = slices.Clone(leases)
	_, err := do(ctx, d, "Revoke", len(leases), func(ctx context.Context) (int, error) { return 0, d.Store.Revoke(ctx, leases) })
	return err
}

func (d *double) Sweep(ctx context.Context) error {
	_, err := do(ctx, d, "Sweep", 0, func(ctx context.Context) (int, error) { return 0, d.Store.Sweep(ctx) })
	return err
}

func (d *double) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	asks = slices.Clone(asks)
	d.remember(asks)
	return do(ctx, d, "Acquire", len(asks), func(ctx context.Context) ([]store.Answer, error) {
		d.mu.Lock()
		quiet := d.quiet
		d.mu.Unlock()
		if quiet > 0 {
			return slices.Repeat([]store.Answer{{Outcome: store.Quiet, QuietFor: quiet}}, len(asks)), nil
		}
		return unlessLocked(d, asks, func(a store.Ask) string { return a.Key }, store.Answer{Outcome: store.RowLocked},
			func(asks []store.Ask) ([]store.Answer, error) { return d.Store.Acquire(ctx, asks) })
	})
}

func (d *double) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	asks = slices.Clone(asks)
	d.remember(asks)
	d.mu.Lock()
	d.enqueued = asks
	d.mu.Unlock()
	return do(ctx, d, "Enqueue", len(asks), func(ctx context.Context) ([]store.Answer, error) {
		return unlessLocked(d, asks, func(a store.Ask) string { return a.Key }, store.Answer{Outcome: store.RowLocked},
			func(asks []store.Ask) ([]store.Answer, error) { return d.Store.Enqueue(ctx, asks) })
	})
}

func (d *double) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	waits = slices.Clone(waits)
	return do(ctx, d, "Check", len(waits), func(unlimited context.Context) ([]store.Answer, error) {
		if err := d.awaitBlocked(ctx, waits); err != nil {
			return nil, &store.Error{Op: "Check", Err: err}
		}
		answers, err := d.Store.Check(unlimited, waits)
		for i := range answers {
			d.handOffs.tell(waits[i].Key, &answers[i])
		}
		return d.unplaced("Check", answers, err)
	})
}

func (d *double) Cancel(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	waits = slices.Clone(waits)
	return do(ctx, d, "Cancel", len(waits), func(ctx context.Context) ([]store.Answer, error) {
		return unlessLocked(d, waits, keyOf, store.Answer{Outcome: store.RowLocked},
			func(waits []store.Attempt) ([]store.Answer, error) {
				answers, err := d.Store.Cancel(ctx, waits)
				return d.unplaced("Cancel", answers, err)
			})
	})
}

func (d *double) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	attempts = slices.Clone(attempts)
	return do(ctx, d, "Withdraw", len(attempts), func(ctx context.Context) ([]store.Outcome, error) {
		return unlessLocked(d, attempts, keyOf, store.RowLocked,
			func(attempts []store.Attempt) ([]store.Outcome, error) {
				outcomes, err := d.Store.Withdraw(ctx, attempts)
				if err == nil && d.unsettled.Add(-1) >= 0 {
					outcomes = slices.Repeat([]store.Outcome{store.Unsettled}, len(attempts))
				}
				return outcomes, err
			})
	})
}

func (d *double) ReapInstance(ctx context.Context, instance string) error {
	_, err := do(ctx, d, "ReapInstance", 0, func(ctx context.Context) (int, error) { return 0, d.Store.ReapInstance(ctx, instance) })
	return err
}

func (d *double) Listen(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listens = append(d.listens, listened{on, d.calls["Enqueue"]})
}

func (d *double) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	claims = slices.Clone(claims)
	return do(ctx, d, "Release", len(claims), func(ctx context.Context) ([]store.Verdict, error) {
		return unlessLocked(d, claims, func(c store.Claim) string { return c.Key }, store.Verdict{Status: store.ClaimRowLocked},
			func(claims []store.Claim) ([]store.Verdict, error) {
				d.handOffs.note(claims)
				return d.Store.Release(ctx, claims)
			})
	})
}

func (d *double) Amend(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return amend(ctx, d, "Amend", changes, func(c store.Change) string { return c.Key }, d.Store.Amend)
}

func (d *double) Downgrade(ctx context.Context, changes []store.Change) ([]store.Amended, error) {
	return amend(ctx, d, "Downgrade", changes, func(c store.Change) string { return c.Key }, d.Store.Downgrade)
}

func (d *double) Adopt(ctx context.Context, adoptions []store.Adoption) ([]store.Amended, error) {
	return amend(ctx, d, "Adopt", adoptions, func(a store.Adoption) string { return a.Key }, d.Store.Adopt)
}

func amend[T any](
	ctx context.Context, d *double, op string, items []T, key func(T) string, by func(context.Context, []T) ([]store.Amended, error),
) ([]store.Amended, error) {
	items = slices.Clone(items)
	return do(ctx, d, op, len(items), func(ctx context.Context) ([]store.Amended, error) {
		return unlessLocked(d, items, key, store.Amended{Status: store.ClaimRowLocked},
			func(items []T) ([]store.Amended, error) { return by(ctx, items) })
	})
}

func (d *double) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	keys = slices.Clone(keys)
	return do(ctx, d, "Get", len(keys), func(ctx context.Context) ([]store.Lock, error) { return d.Store.Get(ctx, keys) })
}

func (d *double) List(ctx context.Context, q store.Query) ([]store.Lock, error) {
	return do(ctx, d, "List", 0, func(ctx context.Context) ([]store.Lock, error) { return d.Store.List(ctx, q) })
}

func (d *double) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	keys = slices.Clone(keys)
	_, err := do(ctx, d, "Watch", len(keys), func(ctx context.Context) (int, error) { return 0, d.Store.Watch(ctx, keys, lease) })
	return err
}

func (d *double) Unwatch(ctx context.Context, keys []string) error {
	keys = slices.Clone(keys)
	_, err := do(ctx, d, "Unwatch", len(keys), func(ctx context.Context) (int, error) { return 0, d.Store.Unwatch(ctx, keys) })
	return err
}
