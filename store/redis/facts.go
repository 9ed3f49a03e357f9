package redis

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"sync"
)

// durability is where a server has what it grants. A lesser one is weaker.
type durability int

const (
	inMemory durability = iota
	writtenLater
	onDisk
)

// names of these in GET /readyz.
var durabilityNames = [...]string{
	inMemory:     "in memory only",
	writtenLater: "in a file that is written later",
	onDisk:       "on the disk of one server",
}

// facts are what the servers say about themselves. Of several servers, the weakest counts.
type facts struct {
	mu         sync.Mutex
	any        bool
	durability durability
	details    map[string]string
	replicas   int
	// empty: a server has just started, and has no keys.
	empty bool
}

// add notes what a server says. fsync is its appendfsync.
func (f *facts) add(info map[string]string, fsync string, empty bool) {
	where := inMemory
	switch {
	case info["aof_enabled"] != "1":
		fsync = "" // it has no effect
	case fsync == "always":
		where = onDisk
	default:
		where = writtenLater
	}
	replicas, _ := strconv.Atoi(info["connected_slaves"])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.empty = f.empty || empty
	if f.any && cmp.Or(cmp.Compare(f.durability, where), cmp.Compare(f.replicas, replicas)) <= 0 {
		return
	}
	f.any, f.durability, f.replicas = true, where, replicas
	f.details = map[string]string{
		"durability": durabilityNames[where], "version": versionOf(info), "maxmemory": info["maxmemory"],
		"maxmemory_policy": info["maxmemory_policy"], "replicas": info["connected_slaves"],
	}
	if fsync != "" {
		f.details["appendfsync"] = fsync
	}
}

// versionOf is the server's version. Valkey says in redis_version which version of Redis it is like.
func versionOf(info map[string]string) string {
	if version := info["valkey_version"]; version != "" {
		return "Valkey " + version
	}
	return info["redis_version"]
}

// tell notes the facts for GET /readyz, and logs the durability if it is news.
func (b *Server) tell(ctx context.Context, found *facts) {
	before := b.Tell(found.details)
	if before == nil && found.empty {
		b.Log.WarnContext(ctx, "Redis has just started without data: it is new, or has lost what it had, so it has a quiet time and grants nothing until it has been up for a TTL. "+
			"If no sidecar has used it yet, `locksidecar migrate --new` spares this: run it once before the first sidecar starts")
	}
	if before["durability"] == found.details["durability"] {
		return
	}
	var attrs []slog.Attr
	for _, name := range []string{"version", "maxmemory", "maxmemory_policy", "replicas", "appendfsync"} {
		if value, said := found.details[name]; said {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	switch found.durability {
	case inMemory:
		b.Log.LogAttrs(ctx, slog.LevelWarn, "Redis keeps locks in memory only (appendonly is off): a restart forgets them, and nothing is granted for a TTL afterwards", attrs...)
	case writtenLater:
		b.Log.LogAttrs(ctx, slog.LevelWarn, "Redis writes its file later (appendfsync): a crash may forget the locks of the last second", attrs...)
	case onDisk:
		b.Log.LogAttrs(ctx, slog.LevelInfo, "Redis keeps locks on its disk; its replicas may lag", attrs...)
	}
}
