package load

import (
	"context"
	"fmt"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// The last keys are shared: semaphores, and others that mostly readers want, and now and then a writer. Two of them,
// one of each, are for [Config.Contend] only.
const (
	sharedKeys = 6
	inUse      = sharedKeys - 2 // at all times
	// permits is the limit of each semaphore. Now and then a client names one more.
	permits = 3
)

// firstShared is the number of the first shared key.
func firstShared(keys int) int { return firstAffine(keys) + affineKeys }

func isShared(keys int, key string) bool { return keyNumber(key) >= firstShared(keys) }

// limitOf is the limit of a shared key, 0 of one that has none.
func limitOf(keys int, key string) int {
	if (keyNumber(key)-firstShared(keys))%2 == 0 {
		return permits
	}
	return 0
}

// cells is how many there are in the fence: one for each key, and for each slot of a semaphore.
func cells(keys int) int { return allKeys(keys) + sharedKeys*(permits+1) }

// cellOf is the cell of the fence that a lock protects. A shared lock without a slot protects none.
func cellOf(keys int, g *grip) (cell int, ok bool) {
	switch n := keyNumber(g.key); {
	case !g.shared:
		return n, true
	case g.slot < 1 || g.slot > permits+1:
		return 0, false
	default:
		return allKeys(keys) + (n-firstShared(keys))*(permits+1) + g.slot - 1, true
	}
}

// sharedKey chooses one of the shared keys that are in use.
func (c *client) sharedKey() string {
	return Key(firstShared(c.cfg.Keys) + min(c.rng.IntN(inUse), c.rng.IntN(inUse)))
}

// anyKey chooses a key of any kind.
func (c *client) anyKey() string {
	switch c.rng.IntN(5) {
	case 0:
		return c.sharedKey()
	case 1:
		return Key(firstAffine(c.cfg.Keys) + c.rng.IntN(affineInUse))
	}
	return c.key()
}

// share gets a permit of a shared key, or now and then all of it, uses it and releases it.
func (c *client) share(ctx context.Context, key string, wait int64) {
	w := want{key: key, wait: wait, byTTL: c.oneOf(6), shared: true, limit: limitOf(c.cfg.Keys, key)}
	switch {
	case c.oneOf(8) && w.limit == 0, c.oneOf(40):
		w.shared, w.limit = false, 0
	case c.oneOf(30) && w.limit > 0:
		w.limit++
	}
	c.lockFor(ctx, w)
}

// downgrade lets others share a lock, and reports whether the client still holds it.
func (c *client) downgrade(ctx context.Context, g *grip) bool {
	switch {
	case g.session != "" && (c.own == nil || c.own.name != g.session):
		return false // it went with its session
	case c.calls == nil && !c.connected(ctx):
		return false
	}
	var headers []string
	if g.session != "" {
		headers = c.own.headers()
	}
	op := c.note(history.Downgrade, g.key)
	op.Session, op.Token = g.session, g.token
	op = c.cfg.Recorder.Begin(op)
	sent := history.Now()
	a, err := c.call(ctx, patience, "PATCH", lockPath(g.key), fmt.Sprintf(`{"token":%d,"mode":"shared"}`, g.token), headers...)
	op.Note = a.note()
	g.shared = true // from now on, perhaps
	switch {
	case err != nil:
		c.drop()
	case a.status == 200:
		op.Outcome, op.Until = history.Held, believe(sent, answer{ExpiresIn: a.ExpiresIn})
		op.Slot, op.Limit = a.slot(), a.Limit
		g.until, g.slot = max(g.until, op.Until), op.Slot
	default:
		op.Outcome = gone(a)
		if op.Outcome == history.NotHeld {
			g.until = 0
		}
	}
	c.cfg.Recorder.End(op)
	return op.Outcome != history.NotHeld
}
