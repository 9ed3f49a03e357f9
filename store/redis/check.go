package redis

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// checkEvery is the time between two checks while nothing is wrong.
const checkEvery = 30 * time.Second

// watchServers checks the servers: regularly, after a doubt, and until they can be used.
func (b *Backend) watchServers(ctx context.Context) {
	for pause := firstPause; ; {
		wait, doubts := checkEvery, b.doubts
		if b.Ready() != nil {
			wait, doubts = pause/2+rand.N(pause), nil //nolint:gosec // spreads load
			pause = min(2*pause, longPause)
		} else {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return
		case <-doubts:
		case <-time.After(wait):
		}
		limited, cancel := context.WithTimeout(ctx, b.config.Timeout)
		err := b.check(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		b.become(err)
	}
}

// check asks each server that takes writes how it is, and whether it keeps locks.
func (b *Backend) check(ctx context.Context) error {
	if c, ok := b.client.(*goredis.ClusterClient); ok {
		return explained(c.ForEachMaster(ctx, func(ctx context.Context, one *goredis.Client) error {
			return b.checkServer(ctx, one)
		}))
	}
	return explained(b.checkServer(ctx, b.client))
}

func explained(err error) error {
	if why, _ := refusal(err); why != "" {
		return fmt.Errorf("%s: %w", why, err)
	}
	return err
}

// checkServer refuses a server that may evict locks or is too old, and logs where it keeps them.
func (b *Backend) checkServer(ctx context.Context, c goredis.Cmdable) error {
	text, err := c.Info(ctx, "server", "memory", "persistence", "replication").Result()
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
	b.say(ctx, c, info)
	return nil
}

// say logs where grants are kept, once.
func (b *Backend) say(ctx context.Context, c goredis.Cmdable, info map[string]string) {
	if b.said.Swap(true) {
		return
	}
	attrs := []slog.Attr{
		slog.String("version", info["redis_version"]), slog.String("maxmemory_policy", info["maxmemory_policy"]),
		slog.String("replicas", info["connected_slaves"]),
	}
	fsync := "unknown" // CONFIG may be forbidden
	if found, err := c.ConfigGet(ctx, "appendfsync").Result(); err == nil {
		fsync = found["appendfsync"]
	}
	switch {
	case info["aof_enabled"] != "1":
		b.log.LogAttrs(ctx, slog.LevelWarn, "Redis keeps locks in memory only (appendonly is off): a restart forgets them, and nothing is granted for a TTL afterwards", attrs...)
	case fsync != "always":
		b.log.LogAttrs(ctx, slog.LevelWarn, "Redis writes its file later (appendfsync): a crash may forget the locks of the last second", append(attrs, slog.String("appendfsync", fsync))...)
	default:
		b.log.LogAttrs(ctx, slog.LevelInfo, "Redis keeps locks on its disk; its replicas may lag", append(attrs, slog.String("appendfsync", fsync))...)
	}
}
