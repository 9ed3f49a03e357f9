//go:build unix

package locksidecar_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

// Proves: client self wait
// A call that would wait for the lock of its own code is refused at once.
func TestNestedUseIsRefused(t *testing.T) {
	_, c := start(t)
	refused := func(err error) {
		t.Helper()
		if e := errorOf(t, err, locksidecar.ErrInvalidRequest); e.Key != "k" || !strings.Contains(e.Detail, "Reentrant") {
			t.Errorf("the refusal is %+v", e)
		}
	}
	ok(t, c.Do(t.Context(), "k", func(ctx context.Context, lock *locksidecar.Lock) error {
		refused(c.Do(ctx, "k", nothing))
		refused(c.Do(ctx, "other", func(ctx context.Context, _ *locksidecar.Lock) error { return c.Do(ctx, "k", nothing) }))
		_, err := c.Acquire(lock.Context(), "k")
		refused(err)
		_, err = c.Shared(ctx, "k")
		refused(err)
		_, err = c.AcquireMany(ctx, []string{"a", "k"})
		refused(err)
		refused(c.Lead(ctx, "k", nothing))
		refused(c.Do(ctx, "k", nothing, locksidecar.Reentrant())) // only if both have it
		if _, got, err := c.TryAcquire(ctx, "k"); got || err != nil {
			t.Errorf("a try: %t, %v", got, err)
		}
		_, err = c.Acquire(ctx, "k", locksidecar.Wait(10*time.Millisecond))
		is(t, err, locksidecar.ErrWaitTimeout)
		return nil
	}))
	gpu := c.Semaphore("gpu", 1)
	err := gpu.Do(t.Context(), func(ctx context.Context, _ *locksidecar.Lock) error { return gpu.Do(ctx, nothing) })
	is(t, err, locksidecar.ErrInvalidRequest)
	two := c.Semaphore("two", 2)
	ok(t, two.Do(t.Context(), func(ctx context.Context, _ *locksidecar.Lock) error { return two.Do(ctx, nothing) }))
	ok(t, c.Do(t.Context(), "doc", func(ctx context.Context, _ *locksidecar.Lock) error {
		return c.Do(ctx, "doc", nothing, locksidecar.Shared())
	}, locksidecar.Shared()))
	// A released lock is nobody's. Work that the holder does not wait for may wait for the lock.
	ok(t, c.Do(t.Context(), "k", func(ctx context.Context, lock *locksidecar.Lock) error {
		ok(t, lock.Release())
		return c.Do(ctx, "k", nothing)
	}))
	later := make(chan error, 1)
	ok(t, c.Do(t.Context(), "k", func(ctx context.Context, _ *locksidecar.Lock) error {
		apart := context.WithoutCancel(locksidecar.Apart(ctx))
		go func() { later <- c.Do(apart, "k", nothing) }()
		waitsFor(t, c, "k", 1)
		return nil
	}))
	ok(t, <-later)
}

func TestReentrantLocksAreEnteredAgain(t *testing.T) {
	_, c := start(t)
	again := locksidecar.Reentrant()
	ok(t, c.Do(t.Context(), "k", func(ctx context.Context, outer *locksidecar.Lock) error {
		ok(t, c.Do(ctx, "k", func(_ context.Context, inner *locksidecar.Lock) error {
			if inner.Reentry() != 2 || inner.Token() != outer.Token() {
				t.Errorf("entry %d, tokens %d, %d", inner.Reentry(), inner.Token(), outer.Token())
			}
			return nil
		}, again))
		status := must(outer.Check(ctx))(t)
		if status.Reentry != 1 {
			t.Errorf("%d entries after the inner one", status.Reentry)
		}
		inner := must(c.Acquire(outer.Context(), "k", again))(t)
		ok(t, inner.Release())
		ok(t, inner.Release()) // once only
		// Other code is another owner.
		if _, got, err := c.TryAcquire(t.Context(), "k", again); got || err != nil {
			t.Errorf("other code: %t, %v", got, err)
		}
		return nil
	}, again))
	isFree(t, c, "k")
	named := []locksidecar.Option{again, locksidecar.Owner("job-7")}
	one, two := must(c.Acquire(t.Context(), "k", named...))(t), must(c.Acquire(t.Context(), "k", named...))(t)
	ok(t, one.Release())
	if released, _ := one.Released(); released.Free {
		t.Errorf("the first release: %+v", released)
	}
	ok(t, two.Release())
	isFree(t, c, "k")
}

// Proves: client groups
// Goroutines of one client that want overlapping keys wait for each other.
func TestGoroutinesWaitForEachOther(t *testing.T) {
	_, c := start(t)
	keys := []string{"acc:1", "acc:2", "acc:3", "acc:4"}
	var mu sync.Mutex
	holders := map[string]int{}
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			for range 20 {
				mine := append([]string(nil), keys...)
				rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				mine = mine[:1+n%3]
				change := func(by int) {
					mu.Lock()
					defer mu.Unlock()
					for _, key := range mine {
						if holders[key] += by; holders[key] > 1 {
							t.Errorf("%d hold %s", holders[key], key)
						}
					}
				}
				if err := c.DoMany(t.Context(), mine, func(context.Context, locksidecar.Locks) error {
					change(1)
					change(-1)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	within(t, "all have had their keys", all.Wait)
}

// Proves: client interrupts
// A call that its caller leaves at any moment leaves no lock that nobody knows.
func TestInterruptedCallsLeaveNoLock(t *testing.T) {
	s, c := start(t)
	observer := s.Client()
	granted := 0
	for i := range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(time.Duration(rand.Int64N(int64(600*time.Microsecond))), cancel)
		lock, err := c.Acquire(ctx, "k")
		switch {
		case err == nil:
			granted++
			ok(t, lock.Release())
		case !errors.Is(err, context.Canceled):
			t.Fatal(err)
		}
		timer.Stop()
		cancel()
		if i%20 == 0 {
			isFree(t, observer, "k")
		}
	}
	isFree(t, observer, "k")
	if granted == 0 || granted == 300 {
		t.Logf("%d of 300 were granted: the interrupts hit nothing", granted)
	}
	ok(t, c.Do(t.Context(), "k", nothing))
}

// Proves: client lost answer
// A release that has no answer returns, goes on by itself, and leaves the object right.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	s := locksidecartest.Start(t, nil)
	c := s.ClientWith(locksidecar.Config{Timeout: 100 * time.Millisecond})
	lock := must(c.Acquire(t.Context(), "k"))(t)
	s.Hang()
	e := errorOf(t, lock.Release(), locksidecar.ErrUnavailable)
	if e.Code != "timeout" {
		t.Errorf("the error is %+v", e)
	}
	if _, released := lock.Released(); released {
		t.Error("it says that it is released")
	}
	s.Resume()
	isFree(t, s.Client(), "k")
	ok(t, lock.Release()) // what became of it
	if released, done := lock.Released(); !done || !released.Free {
		t.Errorf("%+v, %t", released, done)
	}
	ok(t, c.Do(t.Context(), "k", nothing))
}

// Proves: client own clock
// A sidecar that hangs tells nothing. The lock is lost at the end of its lease, by the clock of the client. A shorter hang loses nothing.
func TestHang(t *testing.T) {
	s := locksidecartest.Start(t, map[string]string{"TTL": "2s"})
	c := s.Client()
	lock := must(c.Acquire(t.Context(), "k"))(t)
	s.Hang()
	select {
	case <-lock.Lost():
		t.Errorf("lost too early: %v", lock.Err())
	case <-time.After(500 * time.Millisecond):
	}
	s.Resume()
	must(lock.Check(t.Context()))(t)
	asked := time.Now()
	s.Hang()
	ends(t, "the loss", lock.Lost())
	if took := time.Since(asked); took > 2*time.Second {
		t.Errorf("lost after %s, later than the lease", took)
	}
	if e := errorOf(t, lock.Err(), locksidecar.ErrLockLost); e.Reason != "expired" || !strings.Contains(e.Detail, "does not answer") {
		t.Errorf("the loss is %+v", e)
	}
	s.Resume()
	isFree(t, s.Client(), "k")
	ok(t, c.Do(t.Context(), "k", nothing))
}

// A wait goes on through a restart of the sidecar; a held lock is lost.
func TestRestart(t *testing.T) {
	s := locksidecartest.Start(t, nil)
	outages := make(chan error, 10)
	c := s.ClientWith(locksidecar.Config{OnOutage: func(err error) { outages <- err }})
	lock := must(s.Client().Acquire(t.Context(), "k"))(t)
	ok(t, c.Connect(t.Context()))
	waiting := make(chan error, 1)
	go func() { waiting <- c.Do(t.Context(), "k", nothing) }()
	waitsFor(t, s.Client(), "k", 1)
	s.Kill()
	ends(t, "the loss", lock.Lost())
	if e := errorOf(t, lock.Err(), locksidecar.ErrLockLost); e.Reason != "disconnected" {
		t.Errorf("the loss is %+v", e)
	}
	if err := <-outages; !errors.Is(err, locksidecar.ErrUnavailable) && !errors.Is(err, locksidecar.ErrSessionEnded) {
		t.Errorf("the outage is %v", err)
	}
	ok(t, s.Run())
	ok(t, <-waiting)
	if len(outages) > 0 {
		t.Errorf("told more than once: %v", <-outages)
	}
	s.Kill()
	impatient := s.ClientWith(locksidecar.Config{Reconnect: -1})
	_, err := impatient.Acquire(t.Context(), "k")
	if e := errorOf(t, err, locksidecar.ErrUnavailable); e.Code != "unreachable" || !strings.Contains(e.Detail, "no sidecar listens at "+s.Socket) {
		t.Errorf("without a sidecar: %+v", e)
	}
}

// Processes of a test: the test's own program runs one of these functions.
const childVariable = "LOCKSIDECAR_GO_TEST_CHILD"

var children = map[string]func() int{"starved": starved, "hanging": hanging, "crowded": crowded, "holder": holder}

// Proves: client descriptors
// TestAReleaseGetsThroughWithoutDescriptors: calls that wait take all descriptors, and the release that ends their waits gets through.
func TestAReleaseGetsThroughWithoutDescriptors(t *testing.T) {
	s := locksidecartest.Start(t, nil)
	out := child(t, s, "starved")
	t.Logf("%s", out)
}

// Proves: client own clock
// The question about a lock gets no descriptor, because the calls that hang have all.
func TestALossIsToldInTimeWithoutDescriptors(t *testing.T) {
	s := locksidecartest.Start(t, nil)
	cmd := program(s, "hanging")
	in := must(cmd.StdinPipe())(t)
	out := must(cmd.StdoutPipe())(t)
	ok(t, cmd.Start())
	lines := bufio.NewScanner(out)
	if lines.Scan(); lines.Text() != "acquired" {
		t.Fatal(lines.Text())
	}
	s.Hang()
	_ = in.Close()
	lines.Scan()
	ok(t, cmd.Wait())
	took, err := time.ParseDuration(lines.Text())
	if err != nil || took < 1500*time.Millisecond || took > 20*time.Second {
		t.Errorf("the loss of a lock of 2s came after %q", lines.Text())
	}
}

// Proves: client own clock
// The app has all descriptors. The client asks on a connection that it has kept.
func TestALockStaysWithoutDescriptors(t *testing.T) {
	child(t, locksidecartest.Start(t, nil), "crowded")
}

func program(s *locksidecartest.Sidecar, name string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+name, "LOCKSIDECAR_SOCKET="+s.Socket)
	return cmd
}

func child(t *testing.T, s *locksidecartest.Sidecar, name string) string {
	t.Helper()
	out, err := program(s, name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func starved() int {
	const most = 40
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	c := locksidecar.New(locksidecar.Config{Reconnect: 500 * time.Millisecond})
	lock, err := c.Acquire(ctx, "k")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	results := make(chan error, 4*most)
	for range 4 * most {
		go func() {
			got, err := c.Acquire(ctx, "k")
			if err == nil {
				err = got.Release()
			}
			results <- err
		}()
	}
	named := 0
	for range 2 * most { // those without a connection
		err := <-results
		if !errors.Is(err, locksidecar.ErrUnavailable) || !strings.Contains(err.Error(), "ulimit -n") {
			fmt.Println("a call without a descriptor:", err)
			return 1
		}
		named++
	}
	if _, err := lock.Check(ctx); err != nil {
		fmt.Println("a check:", err)
		return 1
	}
	if err := lock.Release(); err != nil {
		fmt.Println("the release:", err)
		return 1
	}
	granted := 0
	for range 2 * most {
		if err := <-results; err == nil {
			granted++
		} else if !errors.Is(err, locksidecar.ErrUnavailable) {
			fmt.Println("a call that waited:", err)
			return 1
		}
	}
	if err := c.Close(); err != nil || granted == 0 {
		fmt.Println("close:", err, granted)
		return 1
	}
	fmt.Printf("%d calls had no descriptor, %d waited and got the lock\n", named+2*most-granted, granted)
	return 0
}

// hanging has a lock when its input ends, and says how long it had it.
func hanging() int {
	const most = 40
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	c := locksidecar.New(locksidecar.Config{Timeout: time.Minute})
	acquired := time.Now()
	lock, err := c.Acquire(ctx, "k", locksidecar.TTL(2*time.Second))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("acquired")
	_, _ = io.Copy(io.Discard, os.Stdin)
	for range 2 * most {
		go func() { _, _ = c.Get(ctx, "k") }()
	}
	<-lock.Lost()
	fmt.Println(time.Since(acquired))
	var lost *locksidecar.Error
	if !errors.As(lock.Err(), &lost) || lost.Reason != "expired" {
		fmt.Println(lock.Err())
		return 1
	}
	return 0
}

// crowded has a lock for several of its leases without a free descriptor.
func crowded() int {
	const most = 40
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	c := locksidecar.New(locksidecar.Config{})
	lock, err := c.Acquire(ctx, "k", locksidecar.TTL(4*time.Second))
	for err == nil {
		_, err = syscall.Open(os.DevNull, syscall.O_RDONLY, 0)
	}
	if !errors.Is(err, syscall.EMFILE) {
		fmt.Println(err)
		return 1
	}
	select {
	case <-lock.Lost():
		fmt.Println(lock.Err())
		return 1
	case <-time.After(6 * time.Second):
	}
	if _, err := lock.Check(ctx); err != nil {
		fmt.Println("a check:", err)
		return 1
	}
	if err := lock.Release(); err != nil {
		fmt.Println("the release:", err)
		return 1
	}
	return 0
}

// A process that ends has no locks any more.
func TestAProcessThatEndsFreesItsLocks(t *testing.T) {
	s, c := start(t)
	child(t, s, "holder")
	isFree(t, c, "k")
}

func holder() int {
	if _, err := locksidecar.New(locksidecar.Config{}).Acquire(context.Background(), "k"); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}
