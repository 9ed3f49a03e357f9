package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// checkEvery is the time between two checks while nothing is wrong.
const checkEvery = 30 * time.Second

// check asks each server that takes writes how it is, and whether it keeps locks.
func (b *Server) check(ctx context.Context) error {
	var found facts
	err := b.each(ctx, func(ctx context.Context, c goredis.Cmdable) error { return b.checkServer(ctx, c, &found) })
	if err == nil {
		b.tell(ctx, &found)
	}
	return explained(err)
}

// each calls do for each server that takes writes, at the same time.
func (b *Server) each(ctx context.Context, do func(ctx context.Context, c goredis.Cmdable) error) error {
	if c, ok := b.client.(*goredis.ClusterClient); ok {
		return c.ForEachMaster(ctx, func(ctx context.Context, one *goredis.Client) error { return do(ctx, one) })
	}
	return do(ctx, b.client)
}

func explained(err error) error {
	if why, _ := refusal(err); why != "" {
		return fmt.Errorf("%s: %w", why, err)
	}
	return err
}

// checkServer refuses a server that may evict locks or is too old, and notes where it keeps them.
func (b *Server) checkServer(ctx context.Context, c goredis.Cmdable, found *facts) error {
	text, err := c.Info(ctx, "server", "memory", "persistence", "replication", "keyspace").Result()
	if err != nil {
		return err
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	switch {
	case info["role"] != "master":
		return fmt.Errorf("this server is a %s: it takes no writes", info["role"])
	case info["loading"] == "1":
		return fmt.Errorf("the server is loading its data")
	}
	major, _, _ := strings.Cut(info["redis_version"], ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("the server is Redis %s; locksidecar needs 7.0 or later (functions), or Valkey", info["redis_version"])
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" && info["maxmemory"] != "0" {
		return fmt.Errorf("maxmemory-policy is %s, so the server may drop leases and locks: set it to noeviction", policy)
	}
	fsync := "unknown" // CONFIG may be forbidden
	if set, err := c.ConfigGet(ctx, "appendfsync").Result(); err == nil {
		fsync = set["appendfsync"]
	}
	up, _ := strconv.Atoi(info["uptime_in_seconds"])
	found.add(info, fsync, info[fmt.Sprintf("db%d", b.target.db)] == "" && time.Duration(up)*time.Second < b.usual())
	return nil
}
