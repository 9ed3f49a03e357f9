// Package history is what clients, observers and faults of a campaign wrote down: one
// [Op] for each call, with the times between which it took effect, all by one clock of
// one machine. The checkers read nothing else, so a history that was kept can be judged
// again.
//
// An operation is written twice: when it begins, and when its answer is there. Of a
// process that was killed meanwhile only the beginning is found; that is an operation
// with an unknown outcome, which may have happened at any time since, or not at all.
package history

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what the client asked for.
type Kind string

// ShortestTTL is the shortest time for which clients ask for a lock of its own lease.
const ShortestTTL = 500 * time.Millisecond

// The operations of clients.
const (
	Acquire   Kind = "acquire"   // PUT, or one key of a POST for several (Group)
	Release   Kind = "release"   // DELETE with a token
	Confirm   Kind = "confirm"   // PATCH: do I still hold it?
	Downgrade Kind = "downgrade" // PATCH: share it from now on
	Get       Kind = "get"       // GET with no-cache
	Stop      Kind = "stop"      // POST …/stop
	Force     Kind = "force"     // DELETE with force
	Drop      Kind = "drop"      // the session's connection closes, by whom ever: no key, no answer
	Lost      Kind = "lost"      // an event: the session does not hold Key under Token any more
	Write     Kind = "write"     // of Token to the resource that the lock protects
)

// The notes of others.
const (
	// Line is what an observer saw in the database: who waits for Key, in order.
	Line Kind = "line"
	// Fault is the time from before a fault is injected until after it is healed.
	Fault Kind = "fault"
	// Ended says that between Call and Return the sessions of Sidecar ended, or could not
	// be relied upon any more (it was killed, told to stop, or its machine slept), or, if
	// Whose is set, those of that process of clients. No client knows of it before.
	Ended Kind = "ended"
	// Unpromised is a time in which exclusion is not promised to anybody (the database's
	// clock was stepped, a standby that was not synchronous was promoted, a leader of etcd was suspended). Tokens are.
	Unpromised Kind = "unpromised"
	// Forgets is a time in which the database server crashes, or another takes its place. Releases that
	// were confirmed just before may be forgotten, until their sidecars repeat them or their leases end.
	Forgets Kind = "forgets"
	// Replaced is a time in which a server that may have forgotten grants and releases takes over, up to the end of its
	// quiet time. Exclusion is promised only to locks of sessions. Tokens are promised to all.
	Replaced Kind = "replaced"
	// Quiet is a time in which another server takes over that has forgotten nothing, up to the end of its quiet time. A free key
	// may be kept for those who wait for it.
	Quiet Kind = "quiet"
	// Keeps says that Sidecar keeps keys that were released there: until its Until, counted from its Call, without use (LOCKSIDECAR_KEEP).
	// It is true of the whole history.
	Keeps Kind = "keeps"
	// Slow is a time that an observer needed to look at the database, when that was long: the
	// machine had other things to do.
	Slow Kind = "slow"
)

// Outcome is the result of the operation.
type Outcome string

// How operations end.
const (
	Unknown Outcome = ""        // no answer, or one that does not tell (5xx)
	Granted Outcome = "granted" // Acquire: Token, Until
	Held    Outcome = "held"    // Acquire: somebody else has it; Confirm, Downgrade: I hold it, Until; Get: not free
	Timeout Outcome = "timeout" // Acquire: waited in vain; Position
	Refused Outcome = "refused" // certainly nothing done: limits, a session that ended
	Done    Outcome = "done"    // Release, Stop, Force; Write: accepted
	NotHeld Outcome = "nothold" // Release, Confirm: not under this token; Stop, Force: by nobody
	Free    Outcome = "free"    // Get
	Stale   Outcome = "stale"   // Write: refused, a larger token was there before
	// Mismatch is of an Acquire: the others name another limit.
	Mismatch Outcome = "mismatch"
)

// Op is one operation of a client on one key, or a note of an observer. Call and Return
// are nanoseconds of [Now], Return is 0 when there was no end.
type Op struct {
	ID      string  `json:"id"`
	Process string  `json:"process,omitempty"`
	Client  int     `json:"client"`
	Session string  `json:"session,omitempty"` // empty for bind:ttl
	Sidecar int     `json:"sidecar"`
	Kind    Kind    `json:"kind"`
	Key     string  `json:"key,omitempty"`
	Call    int64   `json:"call"`
	Return  int64   `json:"return,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`

	// Wait is wait_ms as asked.
	Wait int64 `json:"wait,omitempty"`
	// Group is the same for all keys of one call for several.
	Group string `json:"group,omitempty"`
	// Repeats is how often an Acquire was asked for again under its request id before it had
	// this answer. Each time it waits in the queue anew.
	Repeats int   `json:"repeats,omitempty"`
	Token   int64 `json:"token,omitempty"`
	// Shared, of an Acquire: others may have it, too. Of a Get: they are shared holders. Of a Line: the key has such.
	Shared bool `json:"shared,omitempty"`
	// Limit is how many holders there may be: as an Acquire asks for, or as others were told. 0: any number.
	Limit int `json:"limit,omitempty"`
	// Slot is 1 + the slot that a holder has; 0: none.
	Slot int `json:"slot,omitempty"`
	// Holders is how many there are, as a Get says, or a Line.
	Holders int `json:"holders,omitempty"`
	// Attempt is, of a Line, the id of the attempt that has the key, under Token.
	Attempt string `json:"attempt,omitempty"`
	// Until is up to when the client may believe that it holds the lock, as far as this
	// answer tells, reckoned from the earliest moment at which it can have been written.
	Until int64 `json:"until,omitempty"`
	// Cached: the sidecar answered from what it remembers.
	Cached   bool `json:"cached,omitempty"`
	Position int  `json:"position,omitempty"`
	// Unnamed: a Timeout that names no holder, because the last one had gone, or the store was not asked.
	Unnamed bool `json:"unnamed,omitempty"`
	// Line are those who wait, first the first.
	Line []Place `json:"line,omitempty"`
	// Before is, of a Line, when this queue was last seen as it was noted before.
	Before int64 `json:"before,omitempty"`
	// Whose sessions Ended.
	Whose string `json:"whose,omitempty"`
	Note  string `json:"note,omitempty"`
}

// Place is a place in a key's line: its number, who has it ([Op.InLine]), the lease
// under which it is kept, and the id of the attempt. A call can make several attempts.
type Place struct {
	Number  int64  `json:"number"`
	ID      string `json:"id"`
	Lease   string `json:"lease,omitempty"`
	Attempt string `json:"attempt,omitempty"`
	// Dead: the lease had expired.
	Dead bool `json:"dead,omitempty"`
}

// InLine is the name under which an Acquire waits in the queue.
func (op Op) InLine() string {
	switch {
	case op.Group != "":
		return op.Group
	case op.Repeats > 0:
		return op.ID + "/" + strconv.Itoa(op.Repeats)
	}
	return op.ID
}

// Now reads the clock of all histories: it counts while the machine sleeps, nobody sets
// it, and every process of the machine sees the same.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // the kernel is older than Linux 2.6.39
	}
	return t.Nano()
}
