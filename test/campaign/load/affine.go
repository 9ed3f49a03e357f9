package load

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Some keys have a home: a sidecar whose clients want them again and again, as a pod's worker wants the keys of its own customers.
// That sidecar may keep them between two holders. Clients elsewhere want such a key now and then. From time to time a key moves.
// A multiple of 4; the last of them are for [Config.Contend] only.
const (
	affineKeys  = 8
	affineInUse = affineKeys - 3
	// moves is how long a key stays at home.
	moves = 7 * time.Second
)

func firstAffine(keys int) int { return hotKey(keys) + 4 }

func isAffine(keys int, key string) bool {
	n := keyNumber(key) - firstAffine(keys)
	return 0 <= n && n < affineKeys
}

// home is the sidecar whose clients want a key most.
func (c *client) home(key string) int {
	return (keyNumber(key) + int(history.Now()/int64(moves))) % len(c.cfg.Sockets)
}

// affine wants one of so many keys: most likely one that is at home here, and that again and again.
func (c *client) affine(ctx context.Context, from, n int) {
	away := c.oneOf(8) || c.contends() && c.oneOf(4) // what is judged there is how long that takes
	key := Key(from + c.rng.IntN(n))
	for range 2 * n {
		if away != (c.home(key) == c.sidecar) {
			break
		}
		key = Key(from + c.rng.IntN(n))
	}
	times, most := 1, 10*time.Millisecond
	switch {
	case away: // once
	case c.oneOf(12): // until the tokens of a grant have run out
		times, most = 300, 0
	default:
		times += c.rng.IntN(30)
	}
	for range times {
		c.backOff(ctx)
		if ctx.Err() != nil || !c.connected(ctx) || isRush() {
			return
		}
		wait := c.wait()
		if c.contends() && wait > 0 && wait < 100 { // what is judged there is who waits
			wait = -1
		}
		c.lockFor(ctx, want{key: key, wait: wait, byTTL: c.oneOf(60)})
		switch {
		case most == 0:
		case c.oneOf(12): // as long as a sidecar keeps a key, or longer
			rest(ctx, c.upTo(400*time.Millisecond))
		default:
			rest(ctx, c.upTo(most))
		}
	}
}
