package store

import "time"

// TokensPerGrant is how many tokens a session's grant has: its own and those of its cohort.
const TokensPerGrant = 32

// OfGrant reports whether a token is one of the grant that the store knows under its first token.
func OfGrant(first, token int64) bool { return first <= token && token-first < TokensPerGrant }

// Claim is a lock that somebody says to hold, or a share of it, by its token.
type Claim struct {
	Key   string
	Token int64
	// Lease is the one under which the claimed lock is held. Zero: the claimant has only key and
	// token, enough for bind:ttl locks and no other.
	Lease LeaseID
	// Served are the waiters of a cohort that got the lock from their sidecar, in their order; the last
	// is the claimant. They wait no more. Amend makes the last one the holder that others see.
	Served []AttemptID
	// Undelivered: this instance was granted the lock (bind:ttl) and told nobody. If the attempt
	// was repeated at another instance, either may have told somebody: the claim is refused as
	// OtherSession, and the lock lasts for its TTL.
	Undelivered bool
	// Outcome and Result (JSON, or nil) are for those who wait or watch (Release). A share has none, unless
	// the claimant does not know that its exclusive lock became one.
	Outcome ReleaseOutcome
	Result  []byte
	// AtOnce: a pending hold (MinHold) does not keep the key, even if the claimed Lease is dead (Release).
	AtOnce bool
	// Awaited: somebody is known to wait for the key (Release). It only saves time.
	Awaited bool
	// Traceparent is the W3C trace context of the release, or empty, for the next holder.
	Traceparent string
}

// Change is a claim and what to change in the lock.
type Change struct {
	Claim
	// TTL above zero sets the remaining time of a bind:ttl lock, from now.
	TTL time.Duration
	// Session, Owner, AcquiredAt, Data and the claim's Traceparent are those of the last of Served.
	Session, Owner string
	AcquiredAt     time.Time
	// Share turns an exclusive lock into a share with the same token, and grants the waiters at the head
	// of the queue that fit then. The share takes the Limit of the living shared waiters, if there are any, and
	// none otherwise. It ends the lock's cohort. A lock that is a share already stays as it is.
	Share bool
	// SetData replaces the data by Data (nil removes it).
	SetData bool
	Data    []byte
}

// ReleaseOutcome is what a holder says about what it did under the lock.
type ReleaseOutcome uint8

const (
	// NoOutcome: it says nothing.
	NoOutcome ReleaseOutcome = iota
	// Success: it is done; waiters that asked for it are skipped.
	Success
	// Failure: somebody else should do it.
	Failure
)

// ClaimStatus says whether a claim is right.
type ClaimStatus uint8

const (
	// Holds: the claim was right, and what was asked is done.
	Holds ClaimStatus = iota + 1
	// OtherSession: key and token are right, but the lock belongs to a session, and the claim is
	// not from it.
	OtherSession
	// Released: the lock was held under this token and is released.
	Released
	// Expired: the lock was held under this token until its lease ended.
	Expired
	// UnknownToken: the key is not held under this token. The end of a key's last grant is remembered
	// (Released, Expired), also if it was a share and earlier ones are still held. Ends before may be
	// forgotten.
	UnknownToken
	// ClaimRowLocked: somebody keeps the key's row locked; nothing changed.
	ClaimRowLocked
)

// Verdict answers a claim.
type Verdict struct {
	Status ClaimStatus
	// Lock is the lock as it is now (Amend), when it Holds. Of a shared lock, it shows the claimed share:
	// Token, Holder, Stopping and Holders are of this one alone. Release sets key and token and, of a
	// claim without a lease, how long it was held and the trace context of its acquire: the holder
	// of a lease knows the rest.
	Lock Lock
}
