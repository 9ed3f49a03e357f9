// Command pairs prints the pairs of acquire and release a second, each goroutine with a key of its own:
//
//	pairs locksidecar|redislock|socket SOCKET CALLERS SECONDS
//
// socket is a bare loop over the sidecar's socket. Before that, all goroutines want one key, and it fails if two have it at a time.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

// acquire returns the release of a lock, or nil if another caller holds it.
type acquire func(key string) (release func() error, err error)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: pairs locksidecar|redislock|socket SOCKET CALLERS SECONDS")
	}
	callers, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	if err != nil {
		log.Fatal(err)
	}
	lock, err := library(os.Args[1], os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	rate, err := measure(lock, callers, time.Duration(seconds*float64(time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.0f\n", rate)
}

func library(name, socket string) (acquire, error) {
	ctx := context.Background()
	switch name {
	case "socket":
		return onSocket(socket)
	case "locksidecar":
		client := locksidecar.New(locksidecar.Config{Socket: socket})
		return func(key string) (func() error, error) {
			lock, ok, err := client.TryAcquire(ctx, key)
			if err != nil || !ok {
				return nil, err
			}
			return func() error { return lock.Release() }, nil
		}, nil
	}
	client := redislock.New(redis.NewClient(&redis.Options{Network: "unix", Addr: socket}))
	return func(key string) (func() error, error) {
		lock, err := client.Obtain(ctx, key, 30*time.Second, nil)
		if err == nil {
			return func() error { return lock.Release(ctx) }, nil
		}
		if errors.Is(err, redislock.ErrNotObtained) {
			err = nil
		}
		return nil, err
	}, nil
}

func measure(lock acquire, callers int, length time.Duration) (float64, error) {
	contended, err := each(callers, 500*time.Millisecond, exclusive(lock))
	if err != nil {
		return 0, err
	}
	if contended == 0 {
		return 0, errors.New("nobody got the lock")
	}
	if _, err := each(callers, time.Second, own(lock)); err != nil { // warm
		return 0, err
	}
	return each(callers, length, own(lock))
}

// each runs all callers for a time, and returns the number of pairs a second.
func each(callers int, length time.Duration, pair func(caller int) (bool, error)) (float64, error) {
	began := time.Now()
	var pairs atomic.Int64
	var group errgroup.Group
	for i := range callers {
		group.Go(func() error {
			for time.Since(began) < length {
				done, err := pair(i)
				if err != nil {
					return err
				}
				if done {
					pairs.Add(1)
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return float64(pairs.Load()) / time.Since(began).Seconds(), err
}

func exclusive(lock acquire) func(int) (bool, error) {
	var holders atomic.Int64
	return func(int) (bool, error) {
		release, err := lock("bench:one")
		if err != nil || release == nil {
			return false, err
		}
		n := holders.Add(1)
		runtime.Gosched()
		if n != 1 || holders.Load() != 1 {
			return false, errors.New("two callers had the lock at a time")
		}
		holders.Add(-1)
		return true, release()
	}
}

func own(lock acquire) func(int) (bool, error) {
	return func(i int) (bool, error) {
		release, err := lock(fmt.Sprint("bench:", i))
		if err != nil {
			return false, err
		}
		if release == nil {
			return false, errors.New("a key that nobody else uses is held")
		}
		return true, release()
	}
}
