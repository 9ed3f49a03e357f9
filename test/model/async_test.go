package model

import (
	"strings"
	"testing"
)

// An asynchronous standby may miss what was told. Tokens grow all the same; but what else
// is promised is not kept, and this says how far.
func TestAsynchronousFailover(t *testing.T) {
	behind := with(func(b *Bounds) { b.Failovers, b.Asynchronous, b.Bids = 1, true, 2 })
	without := behind
	without.Off = TokenJump
	tokens := func(s *State, _ *Bounds) Invariant {
		if s.broken == TokensGrow {
			return TokensGrow
		}
		return Fine
	}
	for name, c := range map[string]struct {
		bounds Bounds
		goal   func(*State, *Bounds) Invariant
		finds  Invariant
	}{
		"without the jump, tokens do not grow": {without, tokens, TokensGrow},
		// The lease is in the standby, the grant is not: the lease goes on to be renewed, and
		// nothing tells its sidecar. So it lasts until the first holder releases.
		"two hold the key for longer than a TTL": {behind, func(s *State, b *Bounds) Invariant {
			if s.both > b.TTL {
				return Exclusion
			}
			return Fine
		}, Exclusion},
		// A lock comes back that was released, under a lease that goes on to be renewed.
		"a released lock comes back for nobody": {behind, func(s *State, b *Bounds) Invariant {
			if s.failovers == 0 && !s.db.promoted && s.check(b) == Orphan {
				return Orphan
			}
			return Fine
		}, Orphan},
	} {
		if !long && c.finds == Exclusion {
			continue // it takes more than a million states: make model
		}
		t.Run(name, func(t *testing.T) {
			r := newSearch(c.bounds, c.goal).run(far)
			t.Logf("%s, after %d states:\n%s", r.Broken, r.States, strings.Join(r.Trace, "\n"))
			if r.Broken != c.finds {
				t.Errorf("found %q, not %q", r.Broken, c.finds)
			}
		})
	}
}
