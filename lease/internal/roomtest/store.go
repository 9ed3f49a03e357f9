package roomtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// Store is a memory store that records its operations on keys. It can hold their answers, and lose them.
type Store struct {
	*memory.Store
	space  *memory.Space
	inline bool

	mu   sync.Mutex
	held map[string]chan bool // receives whether the answer is lost
	lose bool
	ops  []string
	last time.Time
}

// NewStore makes the store of a sidecar. inline: it takes no time, as memory says of itself.
func NewStore(inline bool) *Store {
	space := memory.NewSpace()
	return &Store{
		Store: space.Open(store.Identity{Namespace: "test", Instance: "a", Pod: "a"}), space: space, inline: inline, held: map[string]chan bool{},
	}
}

// Traits says whether the store takes time, unlike memory.
func (d *Store) Traits() store.Traits { return store.Traits{Inline: d.inline} }

var errLost = &store.Error{Op: "test", Err: errors.New("the answer is lost"), Unknown: true}

// Hold holds the next question of an operation until answer is called.
func (d *Store) Hold(op string) (answer func(lost bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answered := make(chan bool, 1)
	d.held[op] = answered
	return func(lost bool) {
		select {
		case answered <- lost:
		default: // it was called before
		}
	}
}

// HoldElsewhere lets another sidecar hold a key for a day, or until release.
func (d *Store) HoldElsewhere(t *testing.T, key string) (release func()) {
	t.Helper()
	other, lease := d.space.Open(store.Identity{Namespace: "test", Instance: "b-" + uuid.NewString(), Pod: "b"}), uuid.New()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(other.Start(context.Background(), func(store.News) {}))
	t.Cleanup(other.Stop)
	must(other.OpenLeases(context.Background(), []store.NewLease{{ID: lease, TTL: 24 * time.Hour}}))
	answers, err := other.Acquire(context.Background(), []store.Ask{{Attempt: store.Attempt{Key: key, ID: uuid.New()}, Lease: lease}})
	must(err)
	if answers[0].Outcome != store.Granted {
		t.Fatalf("the other sidecar has got %v", answers[0].Outcome)
	}
	return func() {
		_, err := other.Release(context.Background(), []store.Claim{{Key: key, Token: answers[0].Token, Lease: lease}})
		must(err)
	}
}

// LoseAll loses all later questions.
func (d *Store) LoseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lose = true
}

// Forget forgets what was recorded.
func (d *Store) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops = nil
}

// Sent are the recorded operations.
func (d *Store) Sent() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.ops...)
}

// LastSent is when the last operation was sent.
func (d *Store) LastSent() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// ask records a question, and asks it unless it is lost.
func ask[T, R any](ctx context.Context, d *Store, op string, items []T, f func(context.Context, []T) ([]R, error)) ([]R, error) {
	d.mu.Lock()
	d.ops, d.last = append(d.ops, op), time.Now()
	held, lost := d.held[op], d.lose
	delete(d.held, op)
	d.mu.Unlock()
	if held != nil {
		lost = <-held
	}
	if lost {
		return nil, errLost
	}
	return f(context.WithoutCancel(ctx), items)
}

// Acquire asks, unless the question is lost.
func (d *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return ask(ctx, d, "Acquire", asks, d.Store.Acquire)
}

// Enqueue asks, unless the question is lost.
func (d *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return ask(ctx, d, "Enqueue", asks, d.Store.Enqueue)
}

// Cancel asks, unless the question is lost.
func (d *Store) Cancel(ctx context.Context, attempts []store.Attempt) ([]store.Answer, error) {
	return ask(ctx, d, "Cancel", attempts, d.Store.Cancel)
}

// Withdraw asks, unless the question is lost.
func (d *Store) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	return ask(ctx, d, "Withdraw", attempts, d.Store.Withdraw)
}

// Release asks, unless the question is lost.
func (d *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	return ask(ctx, d, "Release", claims, d.Store.Release)
}
