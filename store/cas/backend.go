package cas

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// TokensPerSwap is how many tokens a swap reserves at most: see [Record.Base].
const TokensPerSwap = 2048

// LongestKey is how many bytes a key has at most: a namespace of 255 bytes as in a URL, a slash, and a name of 512 bytes.
const LongestKey = 3*255 + 1 + 512

// Backend is an instance's part of a server that keeps records and leases, and that swaps a record if it is unchanged: see [Server]. Keys are
// opaque to it: they contain the namespace, may have any bytes, also those that are no UTF-8, and up to [LongestKey] of them.
// All methods are safe for concurrent use. Their errors are those of [store.Store]: [store.Unavailable] and
// [store.OutcomeUnknown] classify them. Only after a Swap much depends on the outcome; what else failed is
// repeated, or given up, and then a lease ends by itself. Package castest tests what this page says, but not what a server does if its clock is
// set back or if it crashes.
//
// # Whose clock
//
// Only the server judges whether a lease lives: by its own clock, and at the swap, together with the version. It must be one step, so a
// condition that the caller has computed before is not enough. No clock of an instance decides anything. A server without a clock in its
// conditions can still do it if it deletes the leases that end, and the existence of a lease is the condition. If a renewal changes what the
// condition names, such as the version of the lease, the backend finds out itself why a swap failed, and tries again if the lease lives.
//
// A renewal, too, must be one step with the question whether the lease lives, because it may end meanwhile.
//
// Death is final. A lease that was once reported as dead, or that failed a swap, never lives again, even if the server's clock is set back. So a server that
// compares times must delete the lease before it says that it is dead. It need not remember the dead: it may open the id of a dead lease
// again. The engine opens no id that it has seen dead or has used in a swap. It only repeats an opening that had no answer. If that
// comes late, a lease lives for one more TTL under which nothing is held.
//
// # Tokens
//
// The tokens of a key grow for ever: through deletions of its record, restarts, histories and RaiseTokens. The usual way is that the version
// is the first token, or a multiple of it, and that the server has a floor for records which do not exist:
//
//   - A swap's Base is above the Base and Tokens of the record that it replaces.
//   - A deletion raises the floor above the tokens of the deleted record, with the same commit. The Base of a new record is at least the floor. One
//     floor for all keys is enough, and a counter of the whole server (etcd's revision) needs none.
//   - RaiseTokens raises the floor, and a swap of an existing record regards it, too.
//   - A new history begins with a floor above all that the server may have forgotten: it jumps ahead of the clock, or of the counter.
//
// # Histories
//
// A server may forget what it confirmed, for instance by a failover to a server with older data. This begins a new
// history, whose name no other one has. Load, OpenLeases and Renew say in which one they were carried out. If it is not the one in
// which a lease was opened, the engine reads what is held under this lease. All versions and bases of a history are above those of the
// history before, also above those that were forgotten, so a swap of before fails. Leases that the server still knows go on.
//
// Sidecars may still believe in grants that were forgotten, each for less than the TTL of its lease. So the server first has a quiet time:
// it refuses swaps that reserve tokens, until the longest TTL in use is over. All other swaps work, and so do leases. Therefore the
// server must know the longest TTL of the leases with an Instance, also if it has forgotten these leases: it notes the TTL before it
// opens them, where a failover does not lose it, or the instances remember it. The history is zero for servers that forget nothing.
//
// # Optional parts of a backend
//
// The engine finds by type assertion what only some backends do:
//
//   - [Expecter]: hearing of letters costs it something, so it does so only while they are expected.
//   - [Confirmer]: its server shows a change before it is certain to keep it.
//   - [store.Described]: it tells what the server is, for GET /readyz. A [Readiness] does.
//   - [store.Quieter]: it hears of a quiet time also by other answers than that to a grant.
//
// And [Swapped] has two answers that not every server gives: Quiet, and Locked, if the server locks records for a time.
type Backend interface {
	// Start connects. Letters that are written after Ready was nil arrive, or lost is called. It returns an error
	// at once if the configuration can never work. If only the server is
	// unreachable, the backend keeps trying, and Ready reports an error. ctx limits Start only. deliver is called with
	// each letter to this instance, by one goroutine. Letters about one key come in the order of their swaps. It must not
	// block. lost is called, by any goroutine, if letters may have been lost, also if it is not certain: after a break in the connection, if the server
	// does not repeat letters, and when it drops those of a slow reader. It costs one check of each wait, so it is not for each letter.
	Start(ctx context.Context, deliver func(Letter), lost func()) error
	// Stop ends the background work and closes all connections. It blocks. It may be called repeatedly, and
	// before Start.
	Stop()
	// Ready is nil if operations may succeed now; otherwise the error says why not. It does not ask the server.
	Ready() error
	// Hears reports whether letters arrive now within some tens of milliseconds, as far as the instance knows. A connection that broke
	// silently must be noticed within a few seconds. It does not ask the server.
	Hears() bool
	// Limits are those of a swap. They never change.
	Limits() Limits

	// Load reads records, also those that do not exist, with the states of the leases that they name, and the
	// states of more leases. A Load sees each swap that was answered before it began. The states may be read after the records.
	Load(ctx context.Context, keys []string, leases []store.LeaseID) ([]Record, []LeaseState, error)
	// Swap replaces records. Each swap of a call is carried out or not, independently of the others, and each
	// names another key. An error whose outcome is not unknown says that none was carried out, nor will be. After an unknown one, each
	// may have been carried out, or may be so later, but none twice.
	Swap(ctx context.Context, swaps []Swap) ([]Swapped, error)
	// Post delivers letters that no swap needs. They may be lost, and their Base says nothing. There is at most one to an instance about a key.
	Post(ctx context.Context, letters []Letter) error
	// Scan reads existing records in the order of their keys' bytes, without the states of their leases: those
	// whose keys begin with prefix and sort after the given key. It returns at most limit.
	Scan(ctx context.Context, prefix, after string, limit int) ([]Record, error)

	// OpenLeases makes leases that live for their TTL from now on, or extends those that live: see Whose clock. It returns the history in
	// which it did so. A lease may live longer than its TTL, by what the server rounds up (TTLs begin at half a second, and whole
	// seconds are near enough), but not shorter.
	OpenLeases(ctx context.Context, leases []NewLease) (store.History, error)
	// Renew extends living leases by their TTL, and returns those that it extended, also with an error, and the history
	// in which it did so. Without an error, each of the others is dead.
	Renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, store.History, error)
	// Revoke ends leases. A lease that is dead already is no error.
	Revoke(ctx context.Context, leases []store.LeaseID) error
	// NextToken is above every token that swaps of deleted records have reserved. It is at least the Base that a new record of any key would
	// have now, if no other swap came before. Tokens of existing records need not be below it: the engine reads them.
	// It fails during a quiet time, because nobody knows then what was forgotten.
	NextToken(ctx context.Context) (int64, error)
	// RaiseTokens makes the Base of each later swap of any key at least first. An instance that has not opened a lease since its start
	// may not regard it yet, so a backend may read the floor in OpenLeases, if RaiseTokens fails while leases live.
	// It fails if the server can do so only while no lease lives, and one does.
	RaiseTokens(ctx context.Context, first int64) error
	// Opened returns the living leases that an instance has opened.
	Opened(ctx context.Context, instance string) ([]store.LeaseID, error)
}

// Limits are what one swap may have at most. A larger one is not sent. Record and Mail must be possible together.
type Limits struct {
	// Living is the number of its conditions about leases, at least [LeastLiving].
	Living int
	// Letters is the number of its letters, at least 1. The others go with further swaps.
	Letters int
	// Record is the number of bytes of its data, at least [LeastRecord]. What is less than in [UsualLimits] only lowers how many holders and
	// waiters a key can have. Asks may need only half of it, because a release and what else follows must always be
	// possible.
	Record int
	// Mail is the number of bytes of its letters' bodies together, at least [LeastMail].
	Mail int
}

const (
	// LeastLiving is more leases than an instance has at a time, because each of them may ask in one call.
	LeastLiving = 32
	// LeastRecord is the least that package castest tries.
	LeastRecord = 128 << 10
	// LeastMail is more than one letter has: see maxNotes.
	LeastMail = 256 << 10
)

// UsualLimits fit into one transaction of etcd, whose servers carry out 128 operations, and 1.5 MiB in a request. The other backends
// have the same, so that a key has as many holders and waiters on each store.
var UsualLimits = Limits{Living: 60, Letters: 60, Record: 1 << 20, Mail: LeastMail} //nolint:gochecknoglobals // a constant

// Expecter is a [Backend] that hears of letters only while they are expected, because its server does not push them by itself.
type Expecter interface {
	// Expect says how soon letters are needed. waits: somebody waits or watches here. keeps: keys may be kept here, if letters come soon without many
	// requests. leases: a lease is open here, so its holder may be asked to stop. It returns at once. Hears is true only with waits or keeps.
	Expect(waits, keeps, leases bool)
}

// Confirmer is a [Backend] whose server shows a change before it is certain to keep it.
type Confirmer interface {
	// Confirm returns when the server keeps, also if it crashes, all that was read before the call.
	Confirm(ctx context.Context) error
}

// NewLease is a lease to be opened. Instance is who may be asked for by Opened; empty for leases of single locks.
type NewLease struct {
	store.NewLease
	Instance string
	// Ends: it is for a hand-off, see [Swap.Ends].
	Ends bool
}

// LeaseState says whether a lease lives. Death is final.
type LeaseState struct {
	Alive bool
	// Left is a lower bound of how long it lives from now on without a renewal. Never overstate it: holders of bind:ttl locks are told
	// it. So the time that the answer took is not left any more, and if the server tells only when the lease was renewed, its own time is
	// read before. Swaps do not depend on it, and zero is possible for a lease that ends soon; much too little makes those who wait check too often.
	Left time.Duration
}

// Record is the state of a key on the server.
type Record struct {
	Key string
	// Version changes with each swap, and is never used again for this key, also after a deletion. Zero means that the record does not exist,
	// so also for one that the server only remembers as deleted.
	Version int64
	// Base is above every token that was reserved for this key before: the swap that wrote the record reserved its
	// [Swap.Tokens] from Base on. This holds also if the record was deleted in between, after a restart, and in
	// a new history.
	Base int64
	// Tokens is how many the swap that wrote the record reserved from Base on, at least its [Swap.Tokens]. The Base of each later
	// record is above them.
	Tokens int
	// Data is opaque to the backend.
	Data []byte
	// Leases are the leases that Data names, and States their states, in the same order (not set by Scan).
	Leases []store.LeaseID
	States []LeaseState
	// History is the one in which Load read the record.
	History store.History
}

// Swap replaces the record of a key if its version is unchanged and all Living leases live. A lease that was
// seen dead needs no condition, because death is final.
type Swap struct {
	Key     string
	Version int64
	// Data and Leases are the new record. If Delete is set, the record is deleted instead.
	Data   []byte
	Leases []store.LeaseID
	Delete bool
	Living []store.LeaseID
	// Tokens is how many tokens the swap reserves, at most TokensPerSwap. With zero, it grants nothing.
	Tokens int
	// Ends: the swap ends a lock, or takes a waiter away, and what it grants is a hand-off. A server that has no room for new locks still
	// carries it out.
	Ends bool
	// Letters are delivered if, and only if, the swap is carried out. At most one goes to an instance.
	Letters []Letter
}

// Swapped is the answer to a Swap.
type Swapped struct {
	Done bool
	// Quiet above zero: the swap was not carried out, because it reserves tokens, and the server grants nothing for so
	// long. See [Backend].
	Quiet time.Duration
	// Later: it was not carried out, but may be a moment later, so the engine tries again for a second. Either another session of the server
	// keeps the record locked, or the server has no room for new locks and other swaps of the call were carried out. Without other swaps, a
	// swap for which there is no room fails with an error.
	Later bool
	// Record is the new record if Done, with Version (zero after a deletion), Base and Tokens, but without Data; otherwise the present one, with the states
	// of its leases. If the present version is the expected one, a condition about a lease has failed.
	Record Record
}

// Letter is what a swap tells an instance.
type Letter struct {
	To  string // the instance
	Key string
	// Base is that of the record that the swap wrote (set by the backend). With a deletion or by Post, it says nothing.
	Base int64
	Body []byte
}
