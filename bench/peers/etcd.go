package main

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// etcd locks as etcd's documentation shows: a session, which is a lease, for each who
// locks, and a Mutex on it. All share the client, and its one connection.
func etcd(address string, workers int, hot bool) (operations []func() error, end func(), err error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, func() {}, err
	}
	end = func() { _ = client.Close() } // its leases end by themselves, with the server
	ctx := context.Background()
	for i := range workers {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(15))
		if err != nil {
			return nil, end, err
		}
		mutex := concurrency.NewMutex(session, keyOf(i, hot))
		operations = append(operations, func() error {
			if err := mutex.Lock(ctx); err != nil {
				return err
			}
			return mutex.Unlock(ctx)
		})
	}
	return operations, end, nil
}
