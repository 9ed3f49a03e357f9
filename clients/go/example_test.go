package locksidecar_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

// The examples of the package's documentation. They run against the sidecar of TestMain, which LOCKSIDECAR_SOCKET names.

func Example() {
	client := locksidecar.New(locksidecar.Config{}) // one for each process; goroutines share it
	defer client.Close()

	write := func(_ context.Context, token int64) error { // it should refuse a smaller token than it has seen
		fmt.Println("one process writes the report:", token > 0)
		return nil
	}
	err := client.Do(context.Background(), "report:daily", func(ctx context.Context, lock *locksidecar.Lock) error {
		return write(ctx, lock.Token())
	}, locksidecar.Wait(5*time.Second))
	fmt.Println("error:", err)
	// Output:
	// one process writes the report: true
	// error: <nil>
}

// The lock is released by hand. With Do that cannot be forgotten.
func ExampleClient_Acquire() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()
	ctx := context.Background()

	lock, err := client.Acquire(ctx, "import", locksidecar.Wait(5*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release()

	// The work has the lock's context: it ends when the lock is lost.
	fmt.Println("imports", lock.Key(), lock.Context().Err())
	// Output: imports import <nil>
}

func ExampleClient_TryAcquire() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()
	other := locksidecar.New(locksidecar.Config{Name: "other"}) // another pod
	defer other.Close()
	ctx := context.Background()

	for range 2 {
		lock, ok, err := client.TryAcquire(ctx, "migration")
		switch {
		case err != nil:
			fmt.Println(err)
		case !ok:
			fmt.Println("another pod migrates")
		default:
			fmt.Println("this pod migrates")
			_ = lock.Release()
			_, _ = other.Acquire(ctx, "migration") // the next try meets it
		}
	}
	// Output:
	// this pod migrates
	// another pod migrates
}

// When the lock is lost, the context of the function ends with ErrLockLost as its cause, and Do returns ErrLockLost.
func ExampleClient_Do_loss() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()

	err := client.Do(context.Background(), "report:daily", func(ctx context.Context, lock *locksidecar.Lock) error {
		_ = client.ForceRelease(context.WithoutCancel(ctx), lock.Key()) // here, an operator breaks the lock
		<-ctx.Done()                                                    // what gets ctx, such as a query, ends now
		return context.Cause(ctx)
	})
	var lost *locksidecar.Error
	if errors.Is(err, locksidecar.ErrLockLost) && errors.As(err, &lost) {
		fmt.Println("the report is not finished:", lost.Reason)
	}
	// Output: the report is not finished: forced
}

// One pod leads at a time. The others wait, and one of them leads when the leader ends.
func ExampleClient_Lead() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()
	ctx, shutDown := context.WithCancel(context.Background()) // by signal.NotifyContext in an app
	defer shutDown()

	err := client.Lead(ctx, "scheduler", func(ctx context.Context, _ *locksidecar.Lock) error {
		fmt.Println("leads")
		shutDown()
		<-ctx.Done() // the end of the process, a loss, or a request to stop
		fmt.Println("does not lead any more")
		return context.Cause(ctx)
	}, locksidecar.Data(map[string]string{"address": "10.0.0.7:8080"})) // Leader returns it to others
	fmt.Println(err)
	// Output:
	// leads
	// does not lead any more
	// context canceled
}

// All callers get the price. One of them computes it.
func ExampleOnce() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()

	compute := func(context.Context, *locksidecar.Lock) (int, error) { return 1299, nil }
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			price, err := locksidecar.Once(context.Background(), client, "price:42", compute)
			fmt.Println(price, err)
		})
	}
	callers.Wait()
	// Output:
	// 1299 <nil>
	// 1299 <nil>
	// 1299 <nil>
}

// At most two functions run at a time, in all pods.
func ExampleClient_Semaphore() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()

	gpus := client.Semaphore("gpu", 2)
	err := gpus.Do(context.Background(), func(_ context.Context, permit *locksidecar.Lock) error {
		fmt.Println("uses GPU", permit.Slot()) // no other holder has this number
		return nil
	})
	fmt.Println("error:", err)
	// Output:
	// uses GPU 0
	// error: <nil>
}

// For code that takes a sync.Locker. Its methods have no errors, so it panics when the lock was lost: Do is better.
func ExampleClient_Locker() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()

	var mu sync.Locker = client.Locker("counter")
	mu.Lock()
	fmt.Println("counts")
	mu.Unlock()
	// Output: counts
}
