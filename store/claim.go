package store

import "time"

// TokensPerGrant is how many tokens a session's grant reserves: its own, and one for each possible member
// of its cohort. With 256, a hot key needs a flush for each 256 grants, or every 100 ms.
const TokensPerGrant = 256

// OfGrant reports whether a token belongs to the grant that the store knows under its first token.
func OfGrant(first, token int64) bool { return first <= token && token-first < TokensPerGrant }

// Claim ends a hold. With Key, Token and Lease, the caller says which lock, or share, it holds.
type Claim struct {
	Key   string
	Token int64
	// Lease is the one under which the claimed lock is held. If it is zero, the caller knows only key and
	// token, which suffices for bind:ttl locks alone.
	Lease LeaseID
	// Served are the waiters of a cohort that got the lock from their sidecar, in queue order. The last one makes
	// this claim. The store removes all of them from the queue.
	Served []AttemptID
	// Undelivered: this instance was granted the lock (bind:ttl) and did not report the grant. If the attempt
	// was repeated at another instance, either instance may have reported it. Then the claim is refused as
	// OtherSession, and the lock lasts for its TTL.
	Undelivered bool
	// Outcome and Result (JSON, or nil) are for waiters and watchers. The release of a share has
	// none, unless the claimant does not know that its lock is a share.
	Outcome ReleaseOutcome
	Result  []byte
	// AtOnce: a pending hold (MinHold) does not keep the key, even if the claimed Lease is dead.
	AtOnce bool
	// Awaited: the caller knows that another attempt waits for the key. The store then does the full release at once.
	// Otherwise it may first try a statement that only frees a key without waiters. This saves time, and changes no verdict.
	Awaited bool
	// Traceparent is the W3C trace context of the release, or empty. The next holder gets it.
	Traceparent string
}

// Change checks a lock, and says what to change in it. Key, Token and Lease are those of a [Claim]. Without a TTL and SetData,
// nothing changes.
type Change struct {
	Key   string
	Token int64
	Lease LeaseID
	// TTL above zero sets the remaining time of a bind:ttl lock, from now.
	TTL time.Duration
	// SetData replaces the data by Data (nil removes it).
	SetData bool
	Data    []byte
}

// Adoption makes the last served waiter of a cohort the holder that the store knows. The Token and Lease of its Change are
// those of this waiter. If the store did not know this holder yet, the Data are its data, also without SetData.
type Adoption struct {
	Change
	// Served are the waiters of the cohort that got the lock from their sidecar, in queue order: see [Claim]. It has at least one.
	Served []AttemptID
	// Session, Owner, AcquiredAt and Traceparent are those of the last waiter in Served.
	Session, Owner string
	AcquiredAt     time.Time
	Traceparent    string
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
	// IsShare: the claim without a lease is right, but its Outcome is not: the lock is a share. Nothing changed.
	IsShare
	// ClaimRowLocked: somebody keeps the key's row locked; nothing changed.
	ClaimRowLocked
)

// Verdict answers a [Claim].
type Verdict struct {
	Status ClaimStatus
	// HeldFor is how long a released lock was held, and Traceparent is the trace context of its acquire, if it Holds and the claim
	// has no lease. The holder of a lease knows both.
	HeldFor     time.Duration
	Traceparent string
}

// Amended answers a [Change] or an [Adoption].
type Amended struct {
	Status ClaimStatus
	// Lock is the lock as it is now, if it Holds. Of a shared lock, it shows the claimed share: Token, Holder, Stopping and
	// Holders are of this one alone.
	Lock Lock
}
