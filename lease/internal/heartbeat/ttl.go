package heartbeat

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
)

const (
	// MinMargin and marginShare: after the last confirmed renewal was sent, a lease is trusted for its TTL less 5%,
	// at least 50 ms less. This margin covers clocks of different speeds, and the time to notify the app.
	MinMargin   = clock.SuspensionLimit // a lease survives a suspension that the margin covers
	marginShare = 20
)

// ttlSteps are the TTLs of leases, in addition to the configured one. Each is at most twice the previous
// one. Locks with any TTL between two steps share a lease, because each lease in use costs renewals.
var ttlSteps = [...]time.Duration{
	500 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second,
	15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute, 5 * time.Minute,
	10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour,
	12 * time.Hour, 24 * time.Hour,
}

// MaxLeases is the greatest number of leases that can be pinned at a time: one for each step, and one more.
const MaxLeases = len(ttlSteps) + 1

// Margin is how long before the store's expiry a lease is no longer trusted.
func Margin(ttl time.Duration) time.Duration { return max(ttl/marginShare, MinMargin) }

// Reliable is how long an app may rely on a lock that the store keeps for the time left. The app of a
// bind:ttl lock counts this time itself, because the sidecar does not report its end.
func Reliable(left time.Duration) time.Duration { return left - Margin(left) }

// interval is how often a lease of that TTL is renewed.
func interval(ttl, configured time.Duration) time.Duration { return min(configured, ttl/3) }

// stepOf returns the TTL of the lease for locks with this TTL: the next step, or the configured TTL if that
// is smaller.
func stepOf(ttl, configured time.Duration) time.Duration {
	if ttl == configured {
		return ttl
	}
	i, _ := slices.BinarySearch(ttlSteps[:], ttl)
	switch {
	case i == len(ttlSteps):
		return ttl
	case ttl < configured:
		return min(ttlSteps[i], configured)
	default:
		return ttlSteps[i]
	}
}
