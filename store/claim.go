package store

import "time"

// TokensPerGrant is how many tokens a session's grant reserves: its own, and one for each possible member
// of its cohort. With 256, a hot key needs a flush for each 256 grants, or every 100 ms.
const TokensPerGrant = 256

// OfGrant reports whether a token belongs to the grant that the store knows under its first token.
func OfGrant(first, token int64) bool { return first <= token && token-first < TokensPerGrant }

// Claim is a caller's statement that it holds a lock, or a share, under a token.
type Claim struct {
	Key   string
	Token int64
	// Lease is the one under which the claimed lock is held. If it is zero, the caller knows only key and
	// token, which suffices for bind:ttl locks alone.
	Lease LeaseID
	// Served are the waiters of a cohort that got the lock from their sidecar, in queue order. The last one makes
	// this claim. The store removes all of them from the queue. Amend records the last one as the holder.
	Served []AttemptID
	// Undelivered: this instance was granted the lock (bind:ttl) and did not report the grant. If the attempt
	// was repeated at another instance, either instance may have reported it. Then the claim is refused as
	// OtherSession, and the lock lasts for its TTL.
	Undelivered bool
	// Outcome and Result (JSON, or nil) are for waiters and watchers (Release). The release of a share has
	// none, unless the claimant does not know that its lock is a share.
	Outcome ReleaseOutcome
	Result  []byte
	// AtOnce: a pending hold (MinHold) does not keep the key, even if the claimed Lease is dead (Release).
	AtOnce bool
	// Awaited: the caller knows that another attempt waits for the key (Release). It only saves time.
	Awaited bool
	// Traceparent is the W3C trace context of the release, or empty. The next holder gets it.
	Traceparent string
}

// Change is a claim, and what to change in its lock.
type Change struct {
	Claim
	// TTL above zero sets the remaining time of a bind:ttl lock, from now.
	TTL time.Duration
	// Session, Owner, AcquiredAt, Data and the claim's Traceparent are those of the last waiter in Served.
	Session, Owner string
	AcquiredAt     time.Time
	// Share turns an exclusive lock into a share with the same token, and grants the waiters at the head of
	// the queue that fit then. The share takes the Limit of the living shared waiters, or no limit if there
	// are none. The lock's cohort ends. A lock that is a share already does not change; waiters that fit are
	// granted, because an earlier downgrade may have ended before that.
	Share bool
	// SetData replaces the data by Data (nil removes it).
	SetData bool
	Data    []byte
}

// ReleaseOutcome is what a holder says about what it did under the lock.
type ReleaseOutcome uint8

const (
	// NoOutcome: the holder does not say.
	NoOutcome ReleaseOutcome = iota
	// Success: the work is done; waiters with Skip are skipped.
	Success
	// Failure: another holder should do the work.
	Failure
)

// ClaimStatus says whether a claim is right.
type ClaimStatus uint8

const (
	// Holds: the claim was right, and the operation was carried out.
	Holds ClaimStatus = iota + 1
	// OtherSession: key and token are right, but the lock belongs to a session, and the claim does not name its lease.
	OtherSession
	// Released: the lock was held under this token and is released.
	Released
	// Expired: the lock was held under this token until its lease ended.
	Expired
	// UnknownToken: the key is not held under this token. The end of a key's last grant is remembered (Released,
	// Expired), also if it was a share and earlier ones are still held. Ends before may be forgotten.
	UnknownToken
	// IsShare: the claim without a lease is right, but its Outcome is not: the lock is a share. Nothing changed (Release).
	IsShare
	// ClaimRowLocked: somebody keeps the key's row locked; nothing changed.
	ClaimRowLocked
)

// Verdict answers a claim.
type Verdict struct {
	Status ClaimStatus
	// Lock is the lock as it is now (Amend), when it Holds. Of a shared lock, it shows the claimed share: Token,
	// Holder, Stopping and Holders are of this one alone. Release sets key and token and, of a claim without a lease,
	// how long it was held and the trace context of its acquire: the holder of a lease knows the rest.
	Lock Lock
}
