package model

// most is how many sidecars there can be, slots how many leases each may have at a
// time: one that it trusts, and one that it has lost and wants to see reaped.
const (
	most  = 3
	slots = 2
)

// leaseID is 0 for none, or 1 + slots*sidecar + slot. A slot is used again only when
// nothing names it any more: then it is as good as a random id. gone is a lease that is
// named somewhere and was dead before its slot was used again.
type leaseID uint8

const gone leaseID = 1 + slots*most

func idOf(sidecar, slot int) leaseID { return leaseID(1 + slots*sidecar + slot) }
func (l leaseID) owner() int         { return int(l-1) / slots }
func (l leaseID) slot() int          { return int(l-1) % slots }

// attemptID is 0 for none that matters, or 1 + the sidecar whose attempt it is of. A sidecar
// has one attempt at a time, and begins none while anything of the one before is under way.
type attemptID uint8

// former is the grant of a attempt that is over, and that nobody knows any more.
const former attemptID = 1 + most

// State is all that there is: what the database has, what the sidecars believe, and what
// is on the way between them. Time is what is left of it, and tokens are ranks, so that
// states that differ only in when they are, or in the names of things, are one state.
// There are only bytes in it: it is compared and hashed as a whole.
type State struct {
	db      database
	standby database // what an asynchronous standby has, once it is behind
	behind  bool
	sc      [most]sidecar

	// The faults that may still happen.
	faults, crashes, failovers uint8
	attempts                   uint8 // how many more begin, where that is bounded

	// For the invariants alone; nothing is decided by these.
	top     uint8     // the largest token that was granted
	excused bool      // who was to hand the key off was cut off before it did
	both    uint8     // ticks for which two apps have believed to hold the key
	broken  Invariant // which a step has broken
}

// database is what the tables have, of one key.
type database struct {
	// The lock row.
	holder    leaseID // locks.lease_id
	grant     attemptID
	token     uint8
	contended bool

	leases [1 + slots*most]leaseRow
	queue  [2 * most]waiter // in the order of waiters.id; without gaps
	first  uint8            // meta.first_token
	// promoted: the server's timeline is not the one in meta.
	promoted bool
}

type leaseRow struct {
	there bool
	left  uint8 // ticks until expires_at; 0: it has expired
	old   bool  // its history is not the one in meta
}

type waiter struct {
	grant attemptID
	lease leaseID
}

// next is the token of the next grant. The clock is no help: it may stand still.
func (d *database) next() uint8 { return max(d.first, d.token+1) }

// exists and lives are what a statement sees of a lease.
func (d *database) exists(l leaseID) bool { return l != 0 && l != gone && d.leases[l].there }
func (d *database) lives(l leaseID) bool  { return d.exists(l) && d.leases[l].left > 0 }

// enqueue makes a waiter, unless it is one.
func (d *database) enqueue(w waiter) {
	for i := range d.queue {
		switch d.queue[i].grant {
		case w.grant:
			return
		case 0:
			d.queue[i] = w
			return
		default:
		}
	}
	panic("more waiters than the model has room for")
}

// drop deletes waiters.
func (d *database) drop(which func(waiter) bool) {
	kept := [2 * most]waiter{}
	n := 0
	for _, w := range d.queue {
		if w.grant != 0 && !which(w) {
			kept[n] = w
			n++
		}
	}
	d.queue = kept
}

// firstLiving is the first waiter whose lease lives, or none.
func (d *database) firstLiving() waiter {
	for _, w := range d.queue {
		if w.grant != 0 && d.lives(w.lease) {
			return w
		}
	}
	return waiter{}
}

// tick is a tick of the database's clock.
func (d *database) tick() {
	for i := range d.leases {
		down(&d.leases[i].left)
	}
}

func down(n *uint8) {
	if *n > 0 {
		*n--
	}
}

// sidecar is what one knows and does, with the one app whose attempt it is.
type sidecar struct {
	up        bool
	phase     phase
	wanted    bool  // the app still waits for the attempt's outcome
	token     uint8 // of what is held or being released
	heldUnder leaseID
	pause     uint8 // ticks until the last withdraw
	withdrawn uint8 // withdrawals that the store has confirmed
	leases    [slots]belief
	ops       [lanes]op
}

// phase is that of a attempt (lease/attempt.go), and of the lock that it wins.
type phase uint8

const (
	idle phase = iota
	asking
	enqueuing
	queued
	cancelling
	withdrawing
	held // the app was told so
	releasing
)

// belief is what a sidecar thinks of a lease of its own (heartbeat/lease.go).
type belief struct {
	state trust
	left  uint8 // ticks until the deadline, by a clock that is as slow as the margin allows
}

type trust uint8

const (
	unused trust = iota
	trusted
	lost // to be reaped
)

// current is the lease that is trusted, or past its deadline unnoticed; 0 if there is none.
func (s *State) current(i int) leaseID {
	for slot, b := range s.sc[i].leases {
		if b.state == trusted {
			return idOf(i, slot)
		}
	}
	return 0
}

// believed is what the sidecar thinks of a lease of its own.
func (s *State) believed(l leaseID) *belief { return &s.sc[l.owner()].leases[l.slot()] }

// alive reports whether a lease is trusted now: every read asks (heartbeat/lease.go).
func (s *State) alive(l leaseID) bool {
	if l == 0 {
		return false
	}
	b := s.believed(l)
	return b.state == trusted && b.left > 0
}

// believes reports whether the app of a sidecar is told, if it asks, that it holds the key.
func (s *State) believes(i int) bool {
	return s.sc[i].up && s.sc[i].phase == held && s.alive(s.sc[i].heldUnder)
}

// The lanes of a sidecar: at most one operation at a time is under way in each.
const (
	asks    = iota // acquire, enqueue, check
	gives          // cancel, release, withdraw
	renews         // open, renew
	reaping        // the reap of what was lost
	lanes
)

// op is an operation of the store under way: the statement in the works, or its answer.
type op struct {
	kind kind
	step step
	back step // after a new history
	// cut: nobody will hear of it. The rest of the statement may still be carried out, at
	// any time, and no other follows.
	cut bool
	// deaf: it goes on, but its attempt is over.
	deaf   bool
	due    uint8   // ticks until not_after; of a renewal: what it is about to write
	age    uint8   // ticks since a renewal was sent
	lease  leaseID // of who asks; that is claimed, opened, renewed or reaped
	token  uint8   // that is claimed; or granted
	seen   sight
	from   leaseID   // the holder whose grant is to be handed off
	dead   leaseID   // that is being reaped
	next   attemptID // the waiter that the hand-off has chosen
	answer answer
}

type kind uint8

const (
	nothing kind = iota
	acquire
	enqueue
	check
	cancel
	release
	withdraw
	open
	renew
	reaped
	sweep
)

// sight is what an ask has seen of the holder's lease, once its row was locked.
type sight uint8

const (
	seenFree sight = iota
	seenMissing
	seenExpired
	seenAlive
)

type answer uint8

const (
	done answer = iota
	granted
	isHeld
	inLine
	leaseLost
	notThere
	failed // with nothing done
)
