package store

import "time"

// Attempt names one attempt to get one key.
type Attempt struct {
	Key string
	ID  AttemptID
	// Undelivered: the caller does not report a grant that a Cancel finds. So another instance may still hand
	// the lock back as Undelivered.
	Undelivered bool
}

// Ask is one attempt to get one key.
type Ask struct {
	Attempt
	// Lease is the asker's renewed lease. A session's lock is held under this lease, and a waiter needs it to
	// keep its queue position. An Acquire with a TTL ignores it.
	Lease LeaseID
	// TTL above zero asks for a bind:ttl lock: the grant makes an unrenewed lease with this lifetime. With
	// zero, the lock is held under Lease.
	TTL time.Duration
	// MinHold above zero keeps the key for so long after the grant, even if the holder releases it or dies.
	MinHold time.Duration
	// Skip: if the holder releases with the Outcome Success, this waiter gets the result instead of the lock
	// (Enqueue). A Shared ask cannot skip.
	Skip bool
	// Shared asks for a share, so several shared holders may have the key at a time.
	Shared bool
	// Limit above zero limits how many shared holders the key may have. Shared holders and shared waiters of
	// a key all name the same limit, or no limit.
	Limit int
	// Session and Owner are shown with the holder.
	Session, Owner string
	// Data is JSON (valid UTF-8), or nil.
	Data []byte
	// Traceparent is the W3C trace context of the call, or empty.
	Traceparent string
	// Last is the token under which the store last knew this instance as the holder of the key, or zero. If the key's last grant has it,
	// nobody had the key in between, and the new grant may be Keepable.
	Last int64
	// NoNews: the asker cancels its wait in a moment, which finds a grant. So an Enqueue does not wait until news are received.
	NoNews bool
}

// Outcome is what became of an attempt.
type Outcome uint8

const (
	// Held: another holder has the lock, or a Shared ask would overtake a waiter or exceed its Limit. Nothing
	// changed.
	Held Outcome = iota + 1
	// Granted: the attempt has the lock.
	Granted
	// Queued: the attempt is in the queue.
	Queued
	// Gone: the attempt neither has the lock nor waits for it.
	Gone
	// LeaseLost: the asker's own lease is expired or dead; nothing changed.
	LeaseLost
	// RowLocked: another transaction keeps the key's row locked; nothing changed.
	RowLocked
	// Skipped: the attempt waited, and the holder released with Success, so the work is done.
	Skipped
	// Quiet: the store grants nothing until QuietFor is over, because a failover may have forgotten grants.
	// Only an Acquire gets this answer. Nothing changed.
	Quiet
	// LimitMismatch: the key's shared holders or shared waiters name another Limit (the Lock shows it) than
	// this Shared ask. Nothing changed. Shared waiters with an expired lease are reaped first.
	LimitMismatch
	// QueueFull: the key is held, and as many attempts wait as the engine allows (Traits), or with too much data.
	// Nothing changed.
	QueueFull
	// Unsettled: the attempt neither has the lock nor waits for it, but the store may still carry out a question
	// about it that was not answered. The caller withdraws it again later.
	Unsettled
)

// Answer says what became of an attempt.
type Answer struct {
	Outcome Outcome
	// Token and AcquiredAt are those of the grant (Granted).
	Token      int64
	AcquiredAt time.Time
	// Slot is the slot of the share (Granted): see [Share].
	Slot int
	// ExpiresIn is how long the grant's lease or its hold lasts at least (Granted). It counts from the question in an answer, and from
	// now in news.
	ExpiresIn time.Duration
	// QuietFor is how long the store grants nothing (Quiet).
	QuietFor time.Duration
	// Lock shows the holder (Held, Queued, QueueFull, LimitMismatch), with at most [BlockersShown] of its Holders. For
	// Queued, Holder.ExpiresIn and NextEnd may be zero or less: then a holder's lease is about to be reaped. In a quiet time there may be
	// no holder: then Holder.ExpiresIn is the rest of the quiet time.
	Lock Lock
	// Position is the queue position of an Enqueue (Queued), or of a wait that a Cancel ended (Gone). The
	// first position is 1. Zero means unknown.
	Position int
	// Result is JSON, or nil, from the holder's release (Skipped).
	Result []byte
	// HandedBy is the W3C trace context of the release that handed the lock to this waiter (Granted), or empty.
	HandedBy string
	// Cohort are the waiters directly behind the holder, in queue order. They wait under the holder's lease for
	// an exclusive lock, and do not skip. Their sidecar may give each of them the lock in turn, under the next
	// token, without asking the store: see Claim.Served. Granted: of a waiter that got its lock by a hand-off.
	// Queued: of the present holder, whose token Lock shows, if this waiter belongs to it. It replaces the cohort that the
	// sidecar has of that grant, and may name waiters that the sidecar has served meanwhile. Of several asks for a key in one call, only the
	// last may have it. The sidecar neither cancels nor withdraws an attempt that it has served.
	Cohort []HalfID
	// Alone: the holder and all waiters ahead are under this waiter's lease (Queued). It only saves time.
	Alone bool
	// GrantedFor is the age of a waiter's grant by the store's clock (Granted).
	GrantedFor time.Duration
	// Keepable: the instance may keep the key after its session has released the lock (Granted). It may give the key to its
	// sessions under the next tokens, at most [TokensPerGrant] in all, until it releases the grant, which it does when it
	// receives a Recall. Only of an answer to an ask whose Last was right, for the exclusive lock of a session, without a MinHold and
	// Skip, of a key that nobody else awaits or watches. The store has reserved the tokens.
	Keepable bool
}

// News reports that a waiter was granted its lock by a hand-off, or was skipped. If the Answer has no
// Outcome, the caller should check the waiter now; the ID may then contain only its first half (HalfID).
// News with Missed, Signals, Recall or an Event is not about a waiter. If the grant was made by another instance, the news
// may contain only the ID, without Key and Lease.
type News struct {
	Attempt
	// Lease is the lease under which the attempt waited.
	Lease  LeaseID
	Answer Answer
	// Missed: some news may have been lost, see [EveryWait].
	Missed bool
	// Signals: there are signals for holders of this instance.
	Signals bool
	// Recall: another instance has begun to wait for the Key, or to watch it, while this instance held it under a Keepable grant. It may
	// come before the answer with that grant. Nothing but the Key is set.
	Recall bool
	// Event is what happened to a key that this instance watches.
	Event *Event
}

// IsHint reports whether news of a waiter only asks to check it.
func (n *News) IsHint() bool { return n.Answer.Outcome == 0 }

// EveryWait is the news that something may have been missed: check every wait, every watched key
// and the signals now.
var EveryWait = News{Missed: true}
