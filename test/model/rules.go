package model

// Rule is one of those on which locks rest. Each can be turned off, to see that the
// search finds what it is there for.
type Rule uint8

// The rules, and where they stand.
const (
	_                Rule = iota
	Margin                // heartbeat/lease.go: a lease is trusted for less time than the store keeps it
	FromSending           // heartbeat/lease.go: a renewal counts from when it was sent
	NeverRevived          // heartbeat/lease.go: a lease past its deadline stays lost
	Suspension            // heartbeat/lease.go: time that the machine slept counts
	AfterCommit           // operation.go: nothing is told before the commit
	NotAfter              // in_time: what comes too late does nothing
	TokenByRow            // acquire_one, give: the token is greater than that of the row that is locked
	NoOldView             // acquire_one: who waited for a row decides by it, not by an older view
	LooksAtContended      // release_one: a release frees only what nobody waits for
	ExpiredIsNotDead      // hand_off: a waiter that has expired is reaped first
	SeesTheWaiterGo       // hand_off: a waiter that cancels in that moment is passed over
	WaitersFirst          // ask: a dead holder's key goes to who waits, not to who asks
	KeyShare              // ask: no reap between the look at the holder and the place in line
	ReapLooksAgain        // reap_one: a lease is deleted only if it is still expired
	HistoryCheck          // in_history: a promoted server grants and reaps nothing before new_history
	HistoryInCheck        // check: nor does it tell a waiter that its grant is over
	NewTTL                // new_history: every lease gets its TTL again
	TokenJump             // new_history: no token is smaller than those that are missing
	Rotation              // lease/internal/reconcile: after a failover locks are verified, and moved to a fresh lease
	AfterOutcome          // lease/attempt.go: a wait is cancelled once it is known to stand in line
	CancelReads           // attempt/cancel.go: a cancel that finds no row reads, and releases what was granted
	GivesBack             // lease/attempt.go: what is won for nobody is handed back
	Withdraw              // lease/attempt.go: what may have been done is withdrawn
	WithdrawLocks         // withdraw: it waits for the attempt that is under way
	LastWord              // attempt/withdraw.go: it is withdrawn again two timeouts later
	ByToken               // release: a claim names the token
	AgainUntilHeard       // attempt/release.go: a release is repeated until it is confirmed
	rules
)

var ruleNames = [rules]string{
	"", "Margin", "FromSending", "NeverRevived", "Suspension", "AfterCommit", "NotAfter", "TokenByRow", "NoOldView",
	"LooksAtContended", "ExpiredIsNotDead", "SeesTheWaiterGo", "WaitersFirst", "KeyShare", "ReapLooksAgain",
	"HistoryCheck", "HistoryInCheck", "NewTTL", "TokenJump", "Rotation", "AfterOutcome", "CancelReads", "GivesBack", "Withdraw", "WithdrawLocks",
	"LastWord", "ByToken", "AgainUntilHeard",
}

func (r Rule) String() string { return ruleNames[r] }

// Bounds are how much there is of everything, and how much may go wrong.
type Bounds struct {
	Sidecars int
	// TTL of leases, and the operations' timeout, in ticks. The margin is one tick.
	TTL, Timeout uint8
	// Faults is how many operations are cut off, by a lost connection or a timeout, and
	// how many leases are not renewed in time.
	Faults, Crashes, Failovers uint8
	// Attempts is how many there are, of all sidecars together; 0: any number.
	Attempts uint8
	// Asynchronous: the standby may be behind when it is promoted.
	Asynchronous bool
	// Forgot is what it does not know when all begins; 0: nothing.
	Forgot forgotten
	// Off is a rule that is turned off, or 0.
	Off Rule
}

type forgotten uint8

const (
	_        forgotten = iota
	aGrant             // the first sidecar's, which holds the key
	aRelease           // of the key that it held
)

func (b *Bounds) on(r Rule) bool { return b.Off != r }
