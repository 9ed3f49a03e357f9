package locksidecar_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

func TestDo(t *testing.T) {
	s, c := start(t)
	other := s.Client()
	var token int64
	ok(t, c.Do(t.Context(), "report:daily", func(ctx context.Context, lock *locksidecar.Lock) error {
		token = lock.Token()
		_, held, err := other.TryAcquire(ctx, "report:daily")
		if held || err != nil {
			t.Errorf("another client: %t, %v", held, err)
		}
		_, err = other.Acquire(ctx, "report:daily", locksidecar.Wait(0))
		e := errorOf(t, err, locksidecar.ErrLockHeld)
		if e.Holder == nil || e.Key != "report:daily" || !strings.Contains(e.Error(), `the holder is pod "`) {
			t.Errorf("the refusal is %+v: %v", e, e)
		}
		_, err = other.Acquire(ctx, "report:daily", locksidecar.Wait(20*time.Millisecond))
		if e := errorOf(t, err, locksidecar.ErrWaitTimeout); !errors.Is(err, locksidecar.ErrLockHeld) || e.Waited < 20*time.Millisecond {
			t.Errorf("the end of a wait is %+v", e)
		}
		return nil
	}))
	lock := must(other.Acquire(t.Context(), "report:daily"))(t)
	if lock.Token() <= token {
		t.Errorf("token %d after %d", lock.Token(), token)
	}
	ok(t, lock.Release())
	ok(t, lock.Release()) // again: the same
	<-lock.Context().Done()
	if lock.Err() != nil || !errors.Is(context.Cause(lock.Context()), context.Canceled) {
		t.Errorf("after the release: %v, %v", lock.Err(), context.Cause(lock.Context()))
	}
	_, err := lock.Check(t.Context())
	is(t, err, locksidecar.ErrNotHolder)
}

var errOfApp = errors.New("of the app")

func TestDoReleasesAfterErrorsAndPanics(t *testing.T) {
	_, c := start(t)
	err := c.Do(t.Context(), "k", func(context.Context, *locksidecar.Lock) error { return errOfApp })
	if err != errOfApp { //nolint:errorlint // unchanged
		t.Errorf("the error is %v", err)
	}
	func() {
		defer func() {
			if recover() != "of the app" {
				t.Error("the panic does not go on")
			}
		}()
		_ = c.Do(t.Context(), "k", func(context.Context, *locksidecar.Lock) error { panic("of the app") })
	}()
	isFree(t, c, "k")
}

// Proves: client loss
// A loss ends the function's context with its cause, and the block ends with the loss whatever the function returns.
func TestLossReachesTheCode(t *testing.T) {
	s, c := start(t)
	for _, returned := range []error{nil, errOfApp} {
		err := c.Do(t.Context(), "k", func(ctx context.Context, lock *locksidecar.Lock) error {
			s.Lose(t, "k")
			ends(t, "the context of the function", ctx.Done())
			ends(t, "Lost", lock.Lost())
			ends(t, "the context of the lock", lock.Context().Done())
			for _, cause := range []error{context.Cause(ctx), lock.Err(), context.Cause(lock.Context())} {
				if e := errorOf(t, cause, locksidecar.ErrLockLost); e.Reason != "forced" || e.Token != lock.Token() || e.Key != "k" {
					t.Errorf("the loss is %+v", e)
				}
			}
			if _, err := c.Acquire(ctx, "other"); !errors.Is(err, locksidecar.ErrLockLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("a call with its context: %v", err)
			}
			return returned
		})
		is(t, err, locksidecar.ErrLockLost)
		if returned != nil && !errors.Is(err, returned) {
			t.Errorf("the error is %v", err)
		}
	}
	told := make(chan error, 1)
	lock := must(c.Acquire(t.Context(), "k", locksidecar.OnLost(func(err error) { told <- err })))(t)
	s.Lose(t, "k")
	is(t, <-told, locksidecar.ErrLockLost)
	is(t, lock.Release(), locksidecar.ErrLockLost)
	_, err := lock.Check(t.Context())
	is(t, err, locksidecar.ErrLockLost)
}

func TestSeveralKeysAndShares(t *testing.T) {
	s, c := start(t)
	ok(t, c.DoMany(t.Context(), []string{"b", "a"}, func(ctx context.Context, locks locksidecar.Locks) error {
		if len(locks) != 2 || locks[0].Key() != "b" || locks.Get("a") == nil || locks.Get("z") != nil {
			t.Errorf("the locks: %v", locks)
		}
		_, err := s.Client().AcquireMany(ctx, []string{"c", "a"}, locksidecar.Wait(0))
		if e := errorOf(t, err, locksidecar.ErrLockHeld); e.Key != "a" {
			t.Errorf("the refusal names %q", e.Key)
		}
		return nil
	}))
	first, second := must(c.Shared(t.Context(), "doc"))(t), must(c.Shared(t.Context(), "doc"))(t)
	_, err := c.Acquire(t.Context(), "doc", locksidecar.Wait(0))
	if e := errorOf(t, err, locksidecar.ErrLockHeld); e.Mode != locksidecar.ModeShared || e.HoldersCount != 2 {
		t.Errorf("the refusal is %+v", e)
	}
	ok(t, first.Release())
	ok(t, second.Release())
	writer := must(c.Acquire(t.Context(), "doc"))(t)
	status := must(writer.Downgrade(t.Context()))(t)
	if status.Mode != locksidecar.ModeShared || writer.Mode() != locksidecar.ModeShared {
		t.Errorf("after the downgrade: %+v", status)
	}
	ok(t, must(c.Shared(t.Context(), "doc"))(t).Release())
	ok(t, writer.Release())

	gpu := c.Semaphore("gpu", 2)
	one, two := must(gpu.Acquire(t.Context()))(t), must(gpu.Acquire(t.Context()))(t)
	if one.Slot() != 0 || two.Slot() != 1 || one.Limit() != 2 {
		t.Errorf("slots %d, %d", one.Slot(), two.Slot())
	}
	if _, got, err := gpu.TryAcquire(t.Context()); got || err != nil {
		t.Errorf("a third permit: %t, %v", got, err)
	}
	_, err = c.Semaphore("gpu", 3).Acquire(t.Context())
	if e := errorOf(t, err, locksidecar.ErrLimitMismatch); e.Limit != 2 {
		t.Errorf("the mismatch is %+v", e)
	}
	ok(t, locksidecar.Locks{one, two}.Release())
}

func TestOnce(t *testing.T) {
	_, c := start(t)
	var runs atomic.Int32
	type report struct{ Rows int }
	begun, finish := make(chan struct{}), make(chan struct{})
	work := func(context.Context, *locksidecar.Lock) (report, error) {
		if runs.Add(1) == 1 {
			close(begun)
		}
		<-finish
		return report{42}, nil
	}
	var all sync.WaitGroup
	results := make([]report, 5)
	for i := range results {
		all.Go(func() {
			if i > 0 {
				<-begun
			}
			var err error
			if results[i], err = locksidecar.Once(t.Context(), c, "report", work); err != nil {
				t.Error(err)
			}
		})
	}
	waitsFor(t, c, "report", 4)
	close(finish)
	all.Wait()
	if runs.Load() != 1 || slices.ContainsFunc(results, func(r report) bool { return r.Rows != 42 }) {
		t.Errorf("%d runs, %v", runs.Load(), results)
	}
	_, err := locksidecar.Once(t.Context(), c, "report", func(context.Context, *locksidecar.Lock) (int, error) { return 0, errOfApp })
	if !errors.Is(err, errOfApp) {
		t.Errorf("a failure: %v", err)
	}
	_, err = locksidecar.Once(t.Context(), c, "report", func(context.Context, *locksidecar.Lock) (string, error) { return strings.Repeat("x", 5000), nil })
	is(t, err, locksidecar.ErrTooLarge)
	isFree(t, c, "report")
}

// Proves: client leader
func TestLead(t *testing.T) {
	s, c := start(t)
	terms := make(chan *locksidecar.Lock)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Lead(ctx, "leader", func(ctx context.Context, lock *locksidecar.Lock) error {
			terms <- lock
			<-ctx.Done()
			return ctx.Err()
		}, locksidecar.Data("web-1"))
	}()
	watch := make(chan string, 10)
	go func() {
		for data, err := range c.WatchLeader(ctx, "leader") {
			if err != nil {
				return
			}
			watch <- string(data)
		}
	}()
	first := <-terms
	if data := must(c.Leader(t.Context(), "leader"))(t); string(data) != `"web-1"` {
		t.Errorf("the leader is %s", data)
	}
	for data := range watch {
		if data == `"web-1"` {
			break
		}
	}
	ok(t, c.Stop(t.Context(), "leader", "deploy"))
	second := <-terms
	if reason := first.StopRequest().Reason; reason != "deploy" || second.Token() <= first.Token() {
		t.Errorf("the request %q, tokens %d, %d", reason, first.Token(), second.Token())
	}
	s.Lose(t, "leader")
	third := <-terms
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Lead has ended with %v", err)
	}
	if _, released := third.Released(); !released {
		t.Error("the last term was not released")
	}
	ok(t, c.Lead(t.Context(), "leader", nothing))
	if err := c.Lead(t.Context(), "leader", func(context.Context, *locksidecar.Lock) error { return errOfApp }); !errors.Is(err, errOfApp) {
		t.Errorf("an error of the function: %v", err)
	}
}

func TestReads(t *testing.T) {
	s, c := start(t)
	lock := must(c.Acquire(t.Context(), "job:a/b?c", locksidecar.Data(map[string]int{"n": 1}), locksidecar.Owner("me")))(t)
	info := must(c.Get(t.Context(), lock.Key(), locksidecar.Fresh()))(t)
	if !info.Held || !info.Mine || info.Token != lock.Token() || info.Type != "job" || info.Holder.Owner != "me" || string(info.Holder.Data) != `{"n":1}` || len(info.Raw) == 0 {
		t.Errorf("the lock is %+v", info)
	}
	must(lock.Update(t.Context(), "new"))(t)
	for i := range 5 {
		ok(t, must(c.Acquire(t.Context(), "other"))(t).Release())
		must(c.Acquire(t.Context(), "list:"+string(rune('a'+i))))(t)
	}
	var keys []string
	for info, err := range c.Locks(t.Context(), locksidecar.Query{PageSize: 2, Scope: locksidecar.ScopeSession}) {
		ok(t, err)
		keys = append(keys, info.Key)
	}
	if strings.Join(keys, " ") != "job:a/b?c list:a list:b list:c list:d list:e" {
		t.Errorf("the locks: %v", keys)
	}
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Client().Acquire(ctx, lock.Key())
		left <- err
	}()
	waitsFor(t, c, lock.Key(), 1)
	for w, err := range c.WaitersOf(t.Context(), lock.Key()) {
		ok(t, err)
		if w.Position != 1 || w.Key != lock.Key() {
			t.Errorf("the waiter is %+v", w)
		}
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait: %v", err)
	}
	waitsFor(t, c, lock.Key(), 0)

	var raw json.RawMessage
	ok(t, c.Call(t.Context(), "GET", "/v1", nil, &raw, 0))
	if description := must(c.Describe(t.Context()))(t); !description.Has("shared") || !strings.Contains(string(raw), description.Version) {
		t.Errorf("%+v, %s", description, raw)
	}
	is(t, c.Stop(t.Context(), "free", ""), locksidecar.ErrNotHeld)
	is(t, c.ForceRelease(t.Context(), "free"), locksidecar.ErrNotHeld)
	_, err := c.Acquire(t.Context(), "")
	is(t, err, locksidecar.ErrInvalidRequest)
	_, err = c.Acquire(t.Context(), "k", locksidecar.Data(make(chan int)))
	is(t, err, locksidecar.ErrInvalidRequest)
	_, err = c.Acquire(t.Context(), "k", locksidecar.Wait(-1))
	is(t, err, locksidecar.ErrInvalidRequest)
	_, err = c.AcquireMany(t.Context(), nil)
	is(t, err, locksidecar.ErrInvalidRequest)
}

// A lock that is bound to its TTL outlives the session, and ends by the clock here if nobody extends it.
func TestBindToTTL(t *testing.T) {
	s, c := start(t)
	lock := must(c.Acquire(t.Context(), "k", locksidecar.BindToTTL(), locksidecar.TTL(time.Minute)))(t)
	must(lock.Extend(t.Context(), 2*time.Minute))(t)
	if lock.Session() != "" || lock.Bind() != locksidecar.BindTTL {
		t.Errorf("session %q, bind %s", lock.Session(), lock.Bind())
	}
	other := s.Client()
	must(other.Check(t.Context(), "k", lock.Token()))(t)
	must(other.Extend(t.Context(), "k", lock.Token(), 3*time.Minute))(t)
	must(other.Update(t.Context(), "k", lock.Token(), 1))(t)
	if done := must(other.Release(t.Context(), "k", lock.Token()))(t); !done.Free {
		t.Errorf("the release: %+v", done)
	}
	_, err := lock.Check(t.Context())
	is(t, err, locksidecar.ErrNotHolder)

	short := must(c.Acquire(t.Context(), "short", locksidecar.BindToTTL(), locksidecar.TTL(500*time.Millisecond)))(t)
	ends(t, "the end of the TTL", short.Lost())
	if e := errorOf(t, short.Err(), locksidecar.ErrLockLost); e.Reason != "expired" {
		t.Errorf("the loss is %+v", e)
	}

	id := "0b8e7d3c-7d2e-4a53-9e52-0123456789ab"
	again := must(c.Acquire(t.Context(), "id", locksidecar.BindToTTL(), locksidecar.TTL(time.Minute), locksidecar.RequestID(id)))(t)
	if same := must(c.Acquire(t.Context(), "id", locksidecar.BindToTTL(), locksidecar.TTL(time.Minute), locksidecar.RequestID(id)))(t); same.Token() != again.Token() {
		t.Errorf("tokens %d, %d", same.Token(), again.Token())
	}
	if done := must(c.ReleaseRequest(t.Context(), "id", id))(t); !done.Free {
		t.Errorf("by the id: %+v", done)
	}
	kept := must(c.Acquire(t.Context(), "kept", locksidecar.BindToTTL(), locksidecar.TTL(time.Minute)))(t)
	ok(t, c.Close())
	if info := must(other.Get(t.Context(), "kept"))(t); !info.Held {
		t.Error("it has ended with its client")
	}
	_ = kept
}

func TestStopReachesTheHolder(t *testing.T) {
	_, c := start(t)
	reasons := make(chan string, 3)
	lock := must(c.Acquire(t.Context(), "k", locksidecar.OnStop(func(s locksidecar.Stopping) { reasons <- s.Reason })))(t)
	if lock.StopRequest() != nil {
		t.Error("a request without a request")
	}
	ok(t, c.Stop(t.Context(), "k", "one"))
	ends(t, "Stopping", lock.Stopping())
	ok(t, c.StopHolder(t.Context(), "k", lock.Token(), "two"))
	if first, second := <-reasons, <-reasons; first != "one" || second != "two" {
		t.Errorf("the requests are %q, %q", first, second)
	}
	status := must(lock.Check(t.Context()))(t)
	if status.Stopping == nil || status.Stopping.Reason != "two" || status.Stopping.RequestedAt.IsZero() {
		t.Errorf("the status is %+v", status.Stopping)
	}
}

func TestEvents(t *testing.T) {
	s, c := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan *locksidecar.Event)
	ended := make(chan error, 1)
	go func() {
		for e, err := range c.Events(ctx, "k") {
			if err != nil {
				ended <- err
				return
			}
			events <- e
		}
	}()
	if e := <-events; e.Type != "state" || e.Lock.Held || e.Key != "k" {
		t.Errorf("the first event is %+v", e)
	}
	lock := must(c.Acquire(t.Context(), "k", locksidecar.Data(1)))(t)
	if e := <-events; e.Type != "acquired" || e.Token != lock.Token() {
		t.Errorf("%+v", e)
	}
	ok(t, lock.Release(locksidecar.WithResult(map[string]int{"rows": 3})))
	if e := <-events; e.Type != "released" || e.Outcome != locksidecar.OutcomeSuccess || string(e.Result) != `{"rows":3}` {
		t.Errorf("%+v", e)
	}
	s.Kill()
	ok(t, s.Run())
	if e := <-events; e.Type != "state" {
		t.Errorf("after a restart: %+v", e)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the end: %v", err)
	}
	for e, err := range c.Events(t.Context(), "k") {
		ok(t, err)
		if e.Type != "state" {
			t.Errorf("%+v", e)
		}
		break // ends the stream
	}
}

func TestLocker(t *testing.T) {
	s, c := start(t)
	locker := c.Locker("k")
	count, inside := 0, atomic.Int32{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			locker.Lock()
			if inside.Add(1) != 1 {
				t.Error("two at a time")
			}
			count++
			inside.Add(-1)
			locker.Unlock()
		})
	}
	within(t, "all have had the lock", all.Wait)
	if count != 8 || locker.Held() != nil {
		t.Errorf("%d had the lock", count)
	}
	locker.Lock()
	s.Lose(t, "k")
	ends(t, "the loss", locker.Held().Lost())
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, locksidecar.ErrLockLost) {
			t.Errorf("Unlock after a loss: %v", err)
		}
	}()
	locker.Unlock()
}

func TestCloseEndsAll(t *testing.T) {
	s := locksidecartest.Start(t, nil)
	c, other := s.Client(), s.Client()
	lock := must(c.Acquire(t.Context(), "k"))(t)
	blocked := must(other.Acquire(t.Context(), "b"))(t)
	waiting := make(chan error, 2)
	go func() {
		_, err := c.Acquire(t.Context(), "b")
		waiting <- err
	}()
	go func() {
		for _, err := range c.Events(t.Context(), "k") {
			if err != nil {
				waiting <- err
			}
		}
	}()
	waitsFor(t, other, "b", 1)
	ok(t, c.Close())
	for range 2 {
		is(t, <-waiting, locksidecar.ErrClosed)
	}
	if e := errorOf(t, lock.Err(), locksidecar.ErrLockLost); e.Reason != "closed" {
		t.Errorf("the loss is %+v", e)
	}
	if info := must(other.Get(t.Context(), "k"))(t); info.Held {
		t.Error("the lock is held after Close")
	}
	_, err := c.Acquire(t.Context(), "k")
	is(t, err, locksidecar.ErrClosed)
	if !errors.Is(err, locksidecar.ErrSessionEnded) {
		t.Error("a closed client is no ended session")
	}
	ok(t, c.Close())
	ok(t, blocked.Release())
}
