package main

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store/redis"
)

// redis measures what P2, P3, P6 and P10 measure, with the sidecar on Redis, beside the lock of Redis's documentation. That has no
// waiters: they ask again after a pause. The server has no files, as the other lock's users mostly have it. A sidecar needs no
// quiet time: nothing was forgotten.
func (b *bench) redis() ([]result, error) {
	server, address, err := b.startPeer(startRedis("--appendonly", "no"))
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: address, Protocol: 2, DisableIdentity: true})
	o := &beside{
		id: "redis", name: "Redis", url: "redis://" + address, server: server, settings: []string{"FAILOVER=quick"},
		rivals:   []rival{{name: "SET NX and a script", args: []string{"redis", address}}},
		position: func() (int64, error) { return recordOnRedis(client) },
		ends:     []func(){server.stop, func() { _ = client.Close() }},
	}
	defer o.stop()
	if err := o.start(b); err != nil {
		return nil, err
	}
	return o.measure(b, 0.6, 64, 256)
}

// recordOnRedis is the version of the record of the key that is handed off.
func recordOnRedis(client *goredis.Client) (int64, error) {
	value, err := client.Get(context.Background(), redis.Prefix()+"k:default/"+handOffKey).Result()
	if err == goredis.Nil { //nolint:errorlint // the library compares it so
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	r, err := redis.Record(handOffKey, value)
	return r.Version, err
}
