package config

import (
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"
)

// The ranges of the variables. Where the contract names none, they keep out what
// can only be a mistake.
const (
	minTTL, maxTTL                   = 500 * time.Millisecond, 24 * time.Hour
	minRenewInterval                 = 50 * time.Millisecond
	minStoreTimeout, maxStoreTimeout = 100 * time.Millisecond, 5 * time.Minute
	minPollInterval, maxPollInterval = 50 * time.Millisecond, time.Minute
	maxCacheTTL                      = time.Minute
	maxDrainTimeout                  = 24 * time.Hour

	// One connection for renewals, one for the listener, one for the rest.
	minPoolConns, maxPoolConns = 3, 1000
	maxBatch                   = 100_000
	maxCount                   = 10_000_000
	minBody, maxBody           = 1 << 10, 16 << 20

	maxNamespaceBytes = 255
	// A pod's name is a DNS name; host names are shorter.
	maxPodBytes = 253
	// sun_path has room for 108 bytes with its closing zero.
	maxSocketBytes = 107
)

// judge turns the raw values into a configuration and collects what is wrong.
func judge(c *check, in raw, src Source) Config {
	cfg := Config{
		Socket:      c.socket("SOCKET", in.Socket),
		SocketMode:  c.fileMode("SOCKET_MODE", in.SocketMode),
		AllowedUIDs: c.uids("ALLOWED_UIDS", in.AllowedUIDs),
		TCPAddr:     c.loopbackAddr("TCP_ADDR", in.TCPAddr),
		AdminAddr:   c.addr("ADMIN_ADDR", in.AdminAddr),

		Store:     c.store(in, src),
		Namespace: c.name("NAMESPACE", in.Namespace, maxNamespaceBytes),
		Pod:       c.pod(in.Pod, src),

		TTL:          c.duration("TTL", in.TTL, minTTL, maxTTL),
		StoreTimeout: c.duration("STORE_TIMEOUT", in.StoreTimeout, minStoreTimeout, maxStoreTimeout),
		PoolMaxConns: c.integer("POOL_MAX_CONNS", in.PoolMaxConns, minPoolConns, maxPoolConns),
		Listen:       oneOf(c, "POSTGRES_LISTEN", in.Listen, ListenAuto, ListenAlways, ListenNever),
		PollInterval: c.duration("POSTGRES_POLL_INTERVAL", in.PollInterval, minPollInterval, maxPollInterval),
		CacheSize:    c.integer("CACHE_SIZE", in.CacheSize, 1, maxCount),
		CacheTTL:     c.duration("CACHE_TTL", in.CacheTTL, 0, maxCacheTTL),
		BatchMax:     c.integer("BATCH_MAX", in.BatchMax, 1, maxBatch),

		MaxSessions:        c.integer("MAX_SESSIONS", in.MaxSessions, 1, maxCount),
		MaxLocksPerSession: c.integer("MAX_LOCKS_PER_SESSION", in.MaxLocksPerSession, 1, maxCount),
		MaxWaiters:         c.integer("MAX_WAITERS", in.MaxWaiters, 1, maxCount),
		MaxBody:            c.size("MAX_BODY", in.MaxBody, minBody, maxBody),

		DrainTimeout: c.duration("DRAIN_TIMEOUT", in.DrainTimeout, 0, maxDrainTimeout),
		AutoMigrate:  c.boolean("AUTO_MIGRATE", in.AutoMigrate),
		AllowForce:   c.boolean("ALLOW_FORCE", in.AllowForce),

		LogLevel:  c.level("LOG_LEVEL", in.LogLevel),
		LogFormat: oneOf(c, "LOG_FORMAT", in.LogFormat, LogJSON, LogText),
	}
	cfg.RenewInterval = c.renewInterval(in, cfg.TTL)
	cfg.ListenURL = c.listenURL(cfg, in)
	c.listeners(cfg, in)
	return cfg
}

// renewInterval leaves room for a second renewal before the lease ends, so that
// one that fails is not yet a lost lock.
func (c *check) renewInterval(in raw, ttl time.Duration) time.Duration {
	if in.RenewInterval == "" {
		return ttl / 3
	}
	// ttl is zero when it was refused: then only the outer range is judged.
	d := c.duration("RENEW_INTERVAL", in.RenewInterval, minRenewInterval, maxTTL/2)
	if ttl > 0 && d > ttl/2 {
		c.bad("RENEW_INTERVAL", in.RenewInterval, fmt.Sprintf(
			"at most %s, half of %sTTL (%s): a renewal that fails must be able to come again before the lease ends",
			short(ttl/2), Prefix, short(ttl)))
	}
	return d
}

// listeners checks what the listeners' settings say about each other.
func (c *check) listeners(cfg Config, in raw) {
	if cfg.TCPAddr != "" && in.AllowedUIDs != "" {
		c.bad("TCP_ADDR", in.TCPAddr, fmt.Sprintf(
			"not together with %sALLOWED_UIDS (%q): a TCP peer has no user id that could be checked",
			Prefix, in.AllowedUIDs))
	}
	if cfg.TCPAddr != "" && cfg.TCPAddr == cfg.AdminAddr && !portZero(cfg.TCPAddr) {
		c.bad("ADMIN_ADDR", in.AdminAddr, fmt.Sprintf("another address than %sTCP_ADDR", Prefix))
	}
}

// pod is what others see of where a holder runs.
func (c *check) pod(value string, src Source) string {
	if value != "" {
		return c.name("POD", value, maxPodBytes)
	}
	if name, ok := src.Lookuper.Lookup("POD_NAME"); ok {
		return c.nameOf("POD_NAME", name, maxPodBytes)
	}
	host, err := src.Hostname()
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%sPOD is not set, and the host name cannot be read: %w", Prefix, err))
		return ""
	}
	return c.name("POD", host, maxPodBytes)
}

// name accepts what can be shown and stored everywhere.
func (c *check) name(variable, value string, limit int) string {
	return c.nameOf(Prefix+variable, value, limit)
}

func (c *check) nameOf(full, value string, limit int) string {
	ok := value != "" && len(value) <= limit && utf8.ValidString(value)
	for _, r := range value {
		ok = ok && !unicode.IsControl(r)
	}
	if !ok {
		c.badFull(full, value, fmt.Sprintf("1 to %d bytes of UTF-8 without control characters", limit))
		return ""
	}
	return value
}

// maxUID is the last user id; (uid_t)-1 means "no user".
const maxUID = math.MaxUint32 - 1
