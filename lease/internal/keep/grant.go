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
	// asked is when the ask was sent. acquired is the store's time of the grant, won the time here when it was noticed.
	asked, acquired, won time.Time

	// The mutex of the key's shard guards the following fields.

	// last is the token that was given last.
	last int64
	// judged: the grant was recalled, and it was decided whether keeping the key has paid.
	judged bool
	// givenUp is closed when the outcome of the release is known, and tried when that is so or the first try has failed, as failed says. Both are nil
	// until the key is given up.
	givenUp, tried chan struct{}
	failed         error
}

// NewGrant makes the grant of a key: its token, when its ask was sent, when it was granted by the store's clock, and when it came.
func NewGrant(key string, l *heartbeat.Lease, token int64, asked, acquired, won time.Time) *Grant {
	return &Grant{Key: key, Lease: l, Visible: token, asked: asked, acquired: acquired, won: won, last: token}
}

// AcquiredAt is a time here, after the grant, by the store's clock.
func (g *Grant) AcquiredAt(now time.Time) time.Time { return g.acquired.Add(now.Sub(g.won)) }

// GivenUp is closed when the outcome of a release that was put off is known. Only a grant that [Table.Take] or [Table.GiveUp] has returned has it.
func (g *Grant) GivenUp() <-chan struct{} { return g.givenUp }

// Tried is closed with GivenUp, or when the first try of the release has failed.
func (g *Grant) Tried() <-chan struct{} { return g.tried }

// Failed is a [store.Error] with why the first try has failed, unless the outcome of the release is known now. Call it after Tried is closed.
func (g *Grant) Failed() error {
	select {
	case <-g.givenUp:
		return nil
	default:
		return &store.Error{Op: "release", Err: g.failed} // what the caller has asked for was not begun
	}
}

// usable reports whether the key may be taken once more. The caller holds the shard's mutex.
func (g *Grant) usable(now time.Time) bool {
	return now.Sub(g.asked) < MaxAge && store.OfGrant(g.Visible, g.last+1)
}
