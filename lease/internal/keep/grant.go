package keep

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/store"
)

// MaxAge is for how long after the ask of a grant the key is kept and taken. So it limits what a lost recall costs.
const MaxAge = 2 * time.Second

// Grant is a keepable grant of the store. The sidecar gives the key to its sessions under the tokens after that of the grant.
type Grant struct {
	// Key, Lease and Visible never change. Visible is the token that the store has, as long as it was not told of a later one.
	Key     string
	Lease   *heartbeat.Lease
	Visible int64
	// Traceparent is that of the last release, while the key is kept or given up: whoever gets the key then, gets it by this release. Who has the lock sets it,
	// before Keep.
	Traceparent string
	// asked is when the ask was sent. acquired is the store's time of the grant, won the time here when it was noticed.
	asked, acquired, won time.Time

	// The mutex of the key's shard guards the following fields.

	// last is the token that was given last.
	last int64
	// judged: the grant was recalled, and it was decided whether keeping the key has paid.
	judged bool
	// givenUp is closed when the outcome of the release is known. try is the try that will end next. Both are nil until the key is given up.
	givenUp chan struct{}
	try     *Try
	// failed: a try has failed. hastened: a call has begun another one since.
	failed, hastened bool
}

// Try is one try to release a grant.
type Try struct {
	ended chan struct{}
	err   error // set before ended is closed
}

func newTry() *Try { return &Try{ended: make(chan struct{})} }

// Ended is closed when the try has failed, or the outcome of the release is known.
func (t *Try) Ended() <-chan struct{} { return t.ended }

// Err is nil if the outcome of the release is known, otherwise a [store.Error] with why the try has failed. Call it after Ended is closed.
func (t *Try) Err() error {
	if t.err == nil {
		return nil
	}
	return &store.Error{Op: "release", Err: t.err} // what the caller has asked for was not begun
}

// NewGrant makes the grant of a key: its token, when its ask was sent, when it was granted by the store's clock, and when it came.
func NewGrant(key string, l *heartbeat.Lease, token int64, asked, acquired, won time.Time) *Grant {
	return &Grant{Key: key, Lease: l, Visible: token, asked: asked, acquired: acquired, won: won, last: token}
}

// AcquiredAt is a time here, after the grant, by the store's clock.
func (g *Grant) AcquiredAt(now time.Time) time.Time { return g.acquired.Add(now.Sub(g.won)) }

// GivenUp is closed when the outcome of a release that was put off is known. Only a grant that [Table.Take] or [Table.GiveUp] has returned has it.
func (g *Grant) GivenUp() <-chan struct{} { return g.givenUp }

// usable reports whether the key may be taken once more. The caller holds the shard's mutex.
func (g *Grant) usable(now time.Time) bool {
	return now.Sub(g.asked) < MaxAge && store.OfGrant(g.Visible, g.last+1)
}
