package locksidecark8s_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecark8s"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

const (
	key = "leader:billing"
	// patience is for what must happen soon. A busy machine may need long.
	patience = time.Minute
	// childSocket names the sidecar to a candidate in a process of its own.
	childSocket = "LOCKSIDECARK8S_TEST_SOCKET"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(childSocket); socket != "" {
		lead(socket)
		return
	}
	os.Exit(m.Run())
}

// lead is a candidate in a process of its own. It says when it leads.
func lead(socket string) {
	ctx, cancel := context.WithCancelCause(context.Background())
	lock := locksidecark8s.New(locksidecar.New(locksidecar.Config{Socket: socket}), key, "child", cancel)
	config := quick(lock)
	config.Callbacks.OnStartedLeading = func(ctx context.Context) {
		fmt.Println("leads")
		<-ctx.Done()
	}
	leaderelection.RunOrDie(ctx, config)
}

// child starts one, and returns when it leads.
func child(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childSocket+"="+socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "leads" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd
}

// quick has the shortest times of client-go that leave no doubt on a busy machine.
func quick(lock resourcelock.Interface) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: lock, ReleaseOnCancel: true, LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 100 * time.Millisecond,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	}
}

// candidate runs elections until the test ends.
type candidate struct {
	lock *locksidecark8s.Lock
	// terms gets the context of each term, with the token of its lock.
	terms chan term
	// seen gets each leader that it sees.
	seen chan string
	// refused counts the refusals of the store.
	refused atomic.Int64
	stop    context.CancelCauseFunc
	ended   chan struct{}
}

type term struct {
	ctx   context.Context //nolint:containedctx // it is what is tested
	token int64
}

// Update counts refusals.
type counting struct {
	*locksidecark8s.Lock

	of *candidate
}

func (c counting) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := c.Lock.Update(ctx, record)
	if errors.Is(err, locksidecar.ErrLockHeld) {
		c.of.refused.Add(1)
	}
	return err
}

func stand(t *testing.T, client *locksidecar.Client, identity string, set func(*leaderelection.LeaderElectionConfig)) *candidate {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	c := &candidate{terms: make(chan term, 16), seen: make(chan string, 64), stop: stop, ended: make(chan struct{})}
	c.lock = locksidecark8s.New(client, key, identity, stop)
	config := quick(counting{c.lock, c})
	config.Callbacks.OnNewLeader = func(identity string) { c.seen <- identity }
	config.Callbacks.OnStartedLeading = func(ctx context.Context) { c.terms <- term{ctx, c.lock.Held().Token()} }
	if set != nil {
		set(&config)
	}
	go func() {
		defer close(c.ended)
		leaderelection.RunOrDie(ctx, config)
	}()
	t.Cleanup(func() { stop(nil); ends(t, "the election", c.ended) })
	return c
}

func (c *candidate) leads(t *testing.T) term {
	t.Helper()
	select {
	case led := <-c.terms:
		return led
	case <-time.After(patience):
		t.Fatal("it does not lead")
		return term{}
	}
}

func ends(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s does not end", what)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func record(identity string) resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	return resourcelock.LeaderElectionRecord{HolderIdentity: identity, LeaseDurationSeconds: 60, RenewTime: now, AcquireTime: now}
}

func TestTheNextCandidateFollows(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	first := stand(t, sidecar.Client(), "first", nil)
	one := first.leads(t)
	second := stand(t, sidecar.Client(), "second", nil)
	for seen := ""; seen != "first"; {
		select {
		case seen = <-second.seen:
		case <-time.After(patience):
			t.Fatal("the second one does not see the first")
		}
	}
	first.stop(nil)
	ends(t, "the first one's election", first.ended)
	ends(t, "its term", one.ctx.Done())
	if two := second.leads(t); two.token <= one.token {
		t.Errorf("token %d after %d", two.token, one.token)
	}
}

// Without a sign of life of the leader's process.
func TestALeaderThatDiesIsFollowed(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	leader := child(t, sidecar.Socket)
	next := stand(t, sidecar.Client(), "next", func(config *leaderelection.LeaderElectionConfig) {
		config.LeaseDuration, config.RenewDeadline = 10*patience, 9*patience // it does not wait for the end of a lease
	})
	ok(t, leader.Process.Kill())
	next.leads(t)
}

// The record of a frozen leader looks outdated, so the next candidate writes its own: the store refuses it while the lock is held.
func TestAFrozenLeaderHasNoSecondBesideIt(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	leader := child(t, sidecar.Socket)
	ok(t, leader.Process.Signal(syscall.SIGSTOP))
	next := stand(t, sidecar.Client(), "next", nil)
	for end := time.Now().Add(patience); next.refused.Load() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never tried to take the outdated record over")
		}
	}
	select {
	case <-next.terms:
		t.Fatal("it leads beside the frozen one")
	default:
	}
	ok(t, leader.Process.Kill()) // as a liveness probe does
	next.leads(t)
}

// Proves: client loss
// client-go would notice a loss only at its next renewal, and then try on until RenewDeadline. By then another one may lead.
func TestALossEndsTheTermAtOnce(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	slow := func(config *leaderelection.LeaderElectionConfig) {
		config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = 10*patience, 8*patience, 5*patience
	}
	first := stand(t, sidecar.Client(), "first", slow)
	one := first.leads(t)
	second := stand(t, sidecar.Client(), "second", nil)
	sidecar.Lose(t, key)
	ends(t, "the term", one.ctx.Done())
	ends(t, "the election", first.ended)
	if first.lock.Held() != nil {
		t.Error("it still has a term")
	}
	if two := second.leads(t); two.token <= one.token {
		t.Errorf("token %d after %d", two.token, one.token)
	}
}

// A leader that hangs with its sidecar loses its lock when the lease ends, and knows it by its own clock.
func TestASidecarThatHangsEndsTheTerm(t *testing.T) {
	sidecar := locksidecartest.Start(t, map[string]string{"TTL": "2s"})
	first := stand(t, sidecar.Client(), "first", func(config *leaderelection.LeaderElectionConfig) {
		config.LeaseDuration, config.RenewDeadline, config.RetryPeriod = 10*patience, 8*patience, 5*patience
	})
	led := first.leads(t)
	sidecar.Hang()
	ends(t, "the term", led.ctx.Done())
	sidecar.Resume()
}

// An election that does not know of the loss yet must not get the lock again, and go on in the same term: another one may have led meanwhile.
func TestALostTermIsNotContinued(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	lost := make(chan error, 1)
	lock := locksidecark8s.New(sidecar.Client(), key, "me", func(err error) { lost <- err })
	ok(t, lock.Create(t.Context(), record("me")))
	sidecar.Lose(t, key)
	select {
	case err := <-lost:
		if !errors.Is(err, locksidecar.ErrLockLost) {
			t.Errorf("the loss is %v", err)
		}
	case <-time.After(patience):
		t.Fatal("nobody is told")
	}
	for what, err := range map[string]error{"Update": lock.Update(t.Context(), record("me")), "Create": lock.Create(t.Context(), record("me"))} {
		if !errors.Is(err, locksidecar.ErrLockLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Not found would make the election create it.
	if _, _, err := lock.Get(t.Context()); !errors.Is(err, locksidecar.ErrLockLost) {
		t.Errorf("Get: %v", err)
	}
}

func TestTheRecordIsTheDataOfTheLock(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	never := func(err error) { t.Errorf("lost: %v", err) }
	one, two := locksidecark8s.New(sidecar.Client(), key, "one", never), locksidecark8s.New(sidecar.Client(), key, "two", never)
	// Also one with the same identity.
	twin := locksidecark8s.New(sidecar.Client(), key, "one", never)
	if _, _, err := one.Get(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("a free lock: %v", err)
	}
	if err := one.Create(t.Context(), record("two")); err == nil {
		t.Error("the record of another one was written")
	}
	ok(t, one.Create(t.Context(), record("one")))
	for what, err := range map[string]error{
		"Create": two.Create(t.Context(), record("two")), "Update": two.Update(t.Context(), record("two")), "Update of a twin": twin.Update(t.Context(), record("one")),
	} {
		if !errors.Is(err, locksidecar.ErrLockHeld) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ok(t, two.Update(t.Context(), resourcelock.LeaderElectionRecord{})) // it leads not, so there is nothing to give up
	changed := record("one")
	changed.LeaderTransitions = 7
	ok(t, one.Update(t.Context(), changed))
	got, raw, err := two.Get(t.Context())
	ok(t, err)
	if got.HolderIdentity != "one" || got.LeaderTransitions != 7 || !got.RenewTime.Equal(&metav1.Time{Time: changed.RenewTime.Truncate(time.Second)}) {
		t.Errorf("the record is %s", raw)
	}
	ok(t, one.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaderTransitions: 7}))
	if one.Held() != nil {
		t.Error("it holds a released lock")
	}
	ok(t, two.Create(t.Context(), record("two")))
	ok(t, two.Update(t.Context(), resourcelock.LeaderElectionRecord{}))
}

func TestALockWithoutARecord(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	held, err := sidecar.Client().Acquire(t.Context(), key)
	ok(t, err)
	lock := locksidecark8s.New(sidecar.Client(), key, "me", func(error) {})
	got, _, err := lock.Get(t.Context())
	ok(t, err)
	if !strings.Contains(got.HolderIdentity, held.Session()) {
		t.Errorf("the holder is %q", got.HolderIdentity)
	}
	if err := lock.Update(t.Context(), record("me")); !errors.Is(err, locksidecar.ErrLockHeld) {
		t.Errorf("Update: %v", err)
	}
}

// As a Lease that nobody renews.
func TestALockThatNobodyRenewsIsReleased(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	lost := make(chan error, 1)
	lock := locksidecark8s.New(sidecar.Client(), key, "me", func(err error) { lost <- err })
	short := record("me")
	short.LeaseDurationSeconds = 0
	ok(t, lock.Create(t.Context(), short))
	next, err := sidecar.Client().Acquire(t.Context(), key, locksidecar.Wait(patience))
	ok(t, err)
	ok(t, next.Release())
	if err := <-lost; err == nil || errors.Is(err, locksidecar.ErrLockLost) {
		t.Errorf("the reason is %v", err)
	}
}
