// Package locksidecark8s is a lock for the leader election of client-go. It is a module of its own, because the client needs only the standard library.
//
//	ctx, cancel := context.WithCancelCause(ctx)
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock: locksidecark8s.New(client, "leader:billing", hostname, cancel),
//		...
//	})
//
// # Who leads
//
// The leader is the one whose session holds the lock, and the record of the election is the lock's data. The record decides nothing: a candidate that
// takes it for outdated asks for the lock, and the store refuses it while another session has it. So two candidates never lead at a time because of their
// clocks, nor because both have the same identity. The fencing token of the term is [Lock.Held]'s.
//
// # Failures
//
// A leader that dies frees its lock at once, and the next candidate has it within RetryPeriod. A leader that is frozen alone, and not its sidecar, cannot
// work and stays the leader, because the sidecar renews its lock: let a liveness probe end such a process. If sidecar and leader are frozen, the lock ends
// after its TTL.
//
// client-go asks for news only each RetryPeriod, and goes on for up to RenewDeadline after a refusal. But a lost lock may be another's at once. So [New] takes
// a function that is called at the loss, and has to end the context of the election.
//
// An election that has ended without ReleaseOnCancel leaves the lock for LeaseDuration, as it leaves a Lease. Then the lock is released.
package locksidecark8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

// errNotRenewed is the end of a term whose election no longer renews it.
var errNotRenewed = errors.New("locksidecark8s: the election has not renewed its record for its LeaseDuration, so the lock was released")

// Lock is a [resourcelock.Interface]. It is for one election at a time.
type Lock struct {
	client   *locksidecar.Client
	key      string
	identity string
	lost     func(error)

	// changing is held while the lock is acquired, written or released.
	changing sync.Mutex

	mu   sync.Mutex
	term *term // nil: this candidate does not lead
	// over is why the last term has ended without the election. Until barred, which is later than the election can go on with that term, all is refused.
	over   error
	barred time.Time
}

// term is a time of leadership.
type term struct {
	lock *locksidecar.Lock
	// lease is the LeaseDuration, rounded up.
	lease time.Duration
	// lapse ends a term that the election does not renew, after until.
	lapse *time.Timer
	until time.Time
}

var _ resourcelock.Interface = (*Lock)(nil)

// New makes a lock for a candidate, without a call. The identity is for people, and for OnNewLeader. lost is called once in each term that ends without the
// election, with the loss. It has to end the election's context, as a [context.CancelCauseFunc] does, because client-go itself would go on for up to RetryPeriod and RenewDeadline.
func New(client *locksidecar.Client, key, identity string, lost func(error)) *Lock {
	if lost == nil {
		panic("locksidecark8s: lost is nil; it has to end the context of the election when the lock is lost")
	}
	if identity == "" {
		panic("locksidecark8s: the identity is empty, which means that nobody leads")
	}
	return &Lock{client: client, key: key, identity: identity, lost: lost}
}

// Held is the lock of the present term, with its fencing token and context, or nil.
func (l *Lock) Held() *locksidecar.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == nil {
		return nil
	}
	return l.term.lock
}

// Identity is that of this candidate.
func (l *Lock) Identity() string { return l.identity }

// Describe is for logs.
func (l *Lock) Describe() string { return fmt.Sprintf("%q of locksidecar", l.key) }

// RecordEvent does nothing: the sidecar's metrics and the key's events tell who leads.
func (l *Lock) RecordEvent(string) {}

// Get is the record of the leader. It is not found if nobody holds the lock.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.refused(); err != nil {
		return nil, nil, err
	}
	info, err := l.client.Get(ctx, l.key, locksidecar.Fresh())
	if err != nil {
		return nil, nil, err
	}
	// A kept lock has perhaps no holder. An acquire asks for it.
	if !info.Held || info.Kept || info.Holder == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Group: "locksidecar", Resource: "locks"}, l.key)
	}
	record := &resourcelock.LeaderElectionRecord{}
	if json.Unmarshal(info.Holder.Data, record) != nil || record.HolderIdentity == "" {
		// It is held for something else than an election.
		record = &resourcelock.LeaderElectionRecord{HolderIdentity: fmt.Sprintf("pod %q, session %q", info.Holder.Pod, info.Holder.Session)}
	}
	raw, err := json.Marshal(record)
	return record, raw, err
}

// Create acquires the lock.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record)
}

// Update writes the record of the leader. A candidate acquires the lock with it, which is refused while another session has it. A record without a holder
// releases the lock.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record)
}

func (l *Lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if err := l.refused(); err != nil {
		return err
	}
	l.mu.Lock()
	t := l.term
	l.mu.Unlock()
	switch {
	case record.HolderIdentity == "":
		return l.release(t)
	case record.HolderIdentity != l.identity:
		return fmt.Errorf("locksidecark8s: the record names %q, and this candidate is %q", record.HolderIdentity, l.identity)
	case t == nil:
		return l.acquire(ctx, record)
	}
	_, err := t.lock.Update(ctx, record)
	if errors.Is(err, locksidecar.ErrLockLost) {
		l.end(t, err)
	}
	if err == nil {
		t.until = time.Now().Add(t.lease)
		t.lapse.Reset(t.lease)
	}
	return err
}

func (l *Lock) acquire(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	t := &term{lease: time.Duration(record.LeaseDurationSeconds+1) * time.Second} // the record has whole seconds, rounded down
	lock, err := l.client.Acquire(ctx, l.key, locksidecar.Wait(0), locksidecar.Data(record), locksidecar.OnLost(func(lost error) { l.end(t, lost) }))
	if err != nil {
		return err
	}
	l.mu.Lock()
	t.lock = lock
	t.until = time.Now().Add(t.lease)
	t.lapse = time.AfterFunc(t.lease, func() { l.lapse(t) })
	l.term = t
	l.mu.Unlock()
	if lost := lock.Err(); lost != nil { // perhaps it was told before the term began
		l.end(t, lost)
		return lost
	}
	return nil
}

// release gives the leadership up.
func (l *Lock) release(t *term) error {
	if t == nil {
		return nil
	}
	l.close(t)
	return t.lock.Release()
}

// close ends a term, and reports whether it was the present one.
func (l *Lock) close(t *term) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != t {
		return false
	}
	l.term = nil
	t.lapse.Stop()
	return true
}

// end ends a term whose lock is lost. An election that does not know this yet would acquire the lock again, and go on as if it had never lost it. So it is
// refused for as long as it may believe in its term: RenewDeadline, which is less than LeaseDuration.
func (l *Lock) end(t *term, why error) {
	l.mu.Lock()
	if l.term != t {
		l.mu.Unlock()
		return
	}
	l.term, l.over, l.barred = nil, why, time.Now().Add(t.lease)
	t.lapse.Stop()
	l.mu.Unlock()
	l.lost(why)
}

// lapse releases the lock of a term that the election has not renewed for its LeaseDuration: it has ended, or hangs.
func (l *Lock) lapse(t *term) {
	l.changing.Lock()
	defer l.changing.Unlock()
	if time.Now().Before(t.until) {
		return // it was renewed just now
	}
	l.end(t, errNotRenewed)
	_ = t.lock.Release() // nil or the loss; without an answer it goes on in the background
}

// refused is the end of a term that the election may not know yet, or nil.
func (l *Lock) refused() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil && time.Now().Before(l.barred) {
		return l.over
	}
	l.over = nil
	return nil
}
