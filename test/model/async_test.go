package model

import (
	"strings"
	"testing"
)

// An asynchronous standby may miss what was told. Tokens grow all the same; but two may
// hold the key, and this says for how long: no longer than for a TTL, because who renews a
// lease verifies its locks. A lock that comes back ends with the lease.
// Proves: A3, trap failover
func TestAsynchronousFailover(t *testing.T) {
	behind := with(func(b *Bounds) { b.Failovers, b.Asynchronous, b.Attempts = 1, true, 2 })
	without := func(r Rule, b Bounds) Bounds {
		b.Off = r
		return b
	}
	// From the beginning that would be many millions of states.
	forgot := func(what forgotten) Bounds {
		b := behind
		b.Forgot, b.Attempts = what, 1
		return b
	}
	tokens := func(s *State, _ *Bounds) Invariant {
		if s.broken == TokensGrow {
			return TokensGrow
		}
		return Fine
	}
	exclusion := func(s *State, b *Bounds) Invariant {
		if s.both > b.TTL {
			return Exclusion
		}
		return Fine
	}
	orphan := func(s *State, b *Bounds) Invariant {
		if s.failovers > 0 || s.db.promoted || s.check(b) != Orphan {
			return Fine
		}
		for _, row := range s.db.leases {
			if row.old && b.on(Rotation) {
				return Fine // it will be closed
			}
		}
		return Orphan
	}
	for name, c := range map[string]struct {
		bounds Bounds
		goal   func(*State, *Bounds) Invariant
		finds  Invariant // nothing: after millions of states, with MODEL=long
	}{
		"without the jump, tokens do not grow":         {without(TokenJump, behind), tokens, TokensGrow},
		"tokens grow":                                  {forgot(aGrant), tokens, Fine},
		"two hold the key for a TTL at most":           {forgot(aGrant), exclusion, Fine},
		"without the rotation, two hold it for longer": {without(Rotation, forgot(aGrant)), exclusion, Exclusion},
		"what comes back is given up":                  {forgot(aRelease), orphan, Fine},
		"without the rotation, what comes back is not": {without(Rotation, forgot(aRelease)), orphan, Orphan},
	} {
		if c.finds == Fine && !long {
			continue
		}
		t.Run(name, func(t *testing.T) {
			r := newSearch(c.bounds, c.goal).run(far)
			t.Logf("%s, after %d states:\n%s", r.Broken, r.States, strings.Join(r.Trace, "\n"))
			if r.Broken != c.finds || r.Short {
				t.Errorf("found %q, not %q", r.Broken, c.finds)
			}
		})
	}
}
