package types

import (
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
)

// Config configures the Manager of package lease. All fields up to Logger are required.
type Config struct {
	// Instance and Pod are this sidecar, as others see the holder.
	Instance, Pod string
	// TTL is the default of a lock, RenewInterval the longest time between two renewals of a lease.
	// A short lease is renewed every TTL/3.
	TTL, RenewInterval time.Duration
	// StoreTimeout limits one operation of the store.
	StoreTimeout time.Duration
	// PollInterval is how often waits are checked while the store cannot push news.
	PollInterval time.Duration
	// CacheSize and CacheTTL limit the held cache; CacheTTL 0: no cache.
	CacheSize int
	CacheTTL  time.Duration
	// BatchMax is the most items in one operation of the store.
	BatchMax int

	MaxSessions, MaxLocksPerSession, MaxWaiters int

	Logger *slog.Logger
	// Clock is the source of time; nil: the machine's clocks.
	Clock clock.Clock
	// Tracer makes spans, Metrics counts; either may be nil.
	Tracer  *observe.Tracer
	Metrics observe.Recorder
}
