package main

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// handOffs lets one client unlock a Mutex for which another client waits, again and again. It writes how long the waiter
// waited from then on, in milliseconds.
func handOffs(address string, times int, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	mutexes := make([]*concurrency.Mutex, 2)
	var client *clientv3.Client
	for i := range mutexes {
		var err error
		if client, err = clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 5 * time.Second}); err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
		if err != nil {
			return err
		}
		mutexes[i] = concurrency.NewMutex(session, "bench:handoff")
	}
	holder, waiter := mutexes[0], mutexes[1]
	all := make([]float64, 0, times)
	for range times {
		took, err := handOff(ctx, client, holder, waiter)
		if err != nil {
			return err
		}
		all = append(all, float64(took)/float64(time.Millisecond))
	}
	return json.NewEncoder(out).Encode(all)
}

func handOff(ctx context.Context, client *clientv3.Client, holder, waiter *concurrency.Mutex) (time.Duration, error) {
	if err := holder.Lock(ctx); err != nil {
		return 0, err
	}
	type grant struct {
		at  time.Time
		err error
	}
	granted := make(chan grant, 1)
	go func() {
		err := waiter.Lock(ctx)
		granted <- grant{time.Now(), err}
	}()
	for waiting := int64(0); waiting < 2; {
		keys, err := client.Get(ctx, "bench:handoff/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		waiting = keys.Count
	}
	// etcd looks every 100 ms at watches that are new. A waiter that has not waited so long would wait for that.
	time.Sleep(120*time.Millisecond + rand.N(8*time.Millisecond))
	released := time.Now()
	if err := holder.Unlock(ctx); err != nil {
		return 0, err
	}
	g := <-granted
	if g.err != nil {
		return 0, g.err
	}
	return g.at.Sub(released), waiter.Unlock(ctx)
}
