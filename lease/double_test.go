package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// double is a store on memory that can be told to fail, to hang and to be slow,
// each operation by its name, and that counts what it is asked.
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
}

// fault is what happens to an operation.
type fault struct {
	// times limits it to so many calls; 0: until it is lifted.
	times int
	// items limits it to calls with at least so many.
	items int
	// before and after are delays around the operation.
	before, after time.Duration
	// gate holds the operation up before it is carried out, held after it.
	gate, held chan struct{}
	// refuse: it is not carried out, and the caller knows that. lose: it is not
	// carried out, forget: it is, and the caller knows neither.
	refuse, lose, forget bool
	// then runs after the operation was carried out.
	then func()
}

var errBroken = errors.New("broken on purpose")

func newDouble(inner *memory.Store) *double {
	return &double{
		Store: inner, faults: map[string]*fault{}, calls: map[string]int{}, items: map[string]int{},
		most: map[string]int{}, attempts: map[store.Attempt]bool{},
	}
}

func (d *double) Traits() store.Traits { return d.traits }

func (d *double) OnNews(hear func(store.News)) {
	d.Store.OnNews(func(n store.News) {
		d.mu.Lock()
		drop := d.dropNews
		d.mu.Unlock()
		if !drop {
			hear(n)
		}
	})
}

// set lets a fault happen to an operation.
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

// every operation that a manager uses.
var everyOp = []string{
	"OpenLeases", "Renew", "Bury", "Sweep", "Acquire", "Enqueue", "CheckWaits", "CancelWaits", "Undo",
	"Release", "Amend", "Get", "List",
}

func (d *double) setAll(f fault) {
	for _, op := range everyOp {
		d.set(op, f)
	}
}

// hold holds an operation up before it is carried out, until the returned
// function is called.
func (d *double) hold(op string) (release func()) {
	gate := make(chan struct{})
	d.set(op, fault{gate: gate})
	return func() {
		d.lift(op)
		close(gate)
	}
}

// holdAnswer holds up the answer of an operation.
func (d *double) holdAnswer(op string) (release func()) {
	gate := make(chan struct{})
	d.set(op, fault{held: gate})
	return func() {
		d.lift(op)
		close(gate)
	}
}

// count is how often an operation was called, asked of how many items, largest
// of how many at once; total adds the calls of all operations.
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
		return none, &store.Error{Op: op, Err: err, Unknown: true} // on its way, perhaps
	}
	if what.refuse || what.lose {
		return none, &store.Error{Op: op, Err: errBroken, Unknown: what.lose}
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

func (d *double) OpenLeases(ctx context.Context, leases []store.NewLease) error {
	_, err := do(ctx, d, "OpenLeases", len(leases), func(ctx context.Context) (int, error) { return 0, d.Store.OpenLeases(ctx, leases) })
	return err
}

func (d *double) Renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, error) {
	return do(ctx, d, "Renew", len(leases), func(ctx context.Context) ([]store.LeaseID, error) { return d.Store.Renew(ctx, leases) })
}

func (d *double) Bury(ctx context.Context, leases []store.LeaseID) error {
	_, err := do(ctx, d, "Bury", len(leases), func(ctx context.Context) (int, error) { return 0, d.Store.Bury(ctx, leases) })
	return err
}

func (d *double) Sweep(ctx context.Context) error {
	_, err := do(ctx, d, "Sweep", 0, func(ctx context.Context) (int, error) { return 0, d.Store.Sweep(ctx) })
	return err
}

func (d *double) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	d.remember(asks)
	return do(ctx, d, "Acquire", len(asks), func(ctx context.Context) ([]store.Answer, error) { return d.Store.Acquire(ctx, asks) })
}

func (d *double) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	d.remember(asks)
	return do(ctx, d, "Enqueue", len(asks), func(ctx context.Context) ([]store.Answer, error) { return d.Store.Enqueue(ctx, asks) })
}

func (d *double) CheckWaits(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return do(ctx, d, "CheckWaits", len(waits), func(ctx context.Context) ([]store.Answer, error) { return d.Store.CheckWaits(ctx, waits) })
}

func (d *double) CancelWaits(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	return do(ctx, d, "CancelWaits", len(waits), func(ctx context.Context) ([]store.Answer, error) { return d.Store.CancelWaits(ctx, waits) })
}

func (d *double) Undo(ctx context.Context, attempts []store.Attempt) error {
	_, err := do(ctx, d, "Undo", len(attempts), func(ctx context.Context) (int, error) { return 0, d.Store.Undo(ctx, attempts) })
	return err
}

func (d *double) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	return do(ctx, d, "Release", len(claims), func(ctx context.Context) ([]store.Verdict, error) { return d.Store.Release(ctx, claims) })
}

func (d *double) Amend(ctx context.Context, changes []store.Change) ([]store.Verdict, error) {
	return do(ctx, d, "Amend", len(changes), func(ctx context.Context) ([]store.Verdict, error) { return d.Store.Amend(ctx, changes) })
}

func (d *double) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	return do(ctx, d, "Get", len(keys), func(ctx context.Context) ([]store.Lock, error) { return d.Store.Get(ctx, keys) })
}

func (d *double) List(ctx context.Context, q store.Query) ([]store.Lock, error) {
	return do(ctx, d, "List", 0, func(ctx context.Context) ([]store.Lock, error) { return d.Store.List(ctx, q) })
}
