package model

import (
	"strings"
	"testing"
	"time"
)

// tooth is what a search finds without a rule: which invariant is the first to go, and
// what had to be possible for that.
type tooth struct {
	bounds Bounds
	finds  Invariant
}

func teeth() map[Rule]tooth {
	faults := func(n, attempts uint8) Bounds { return with(func(b *Bounds) { b.Faults, b.Attempts = n, attempts }) }
	promotion := with(func(b *Bounds) { b.Failovers, b.Attempts = 1, 2 })
	return map[Rule]tooth{
		Margin:           {small, Deadline},
		FromSending:      {with(func(b *Bounds) { b.TTL, b.Faults, b.Attempts = 3, 1, 1 }), Deadline},
		NeverRevived:     {faults(2, 2), Orphan},
		Suspension:       {small, Deadline},
		AfterCommit:      {small, Committed},
		NotAfter:         {faults(1, 2), Orphan},
		TokenByRow:       {small, TokensGrow},
		NoOldView:        {small, Committed},
		LooksAtContended: {small, InTurn},
		ExpiredIsNotDead: {faults(2, 2), InTurn},
		SeesTheWaiterGo:  {small, Orphan},
		WaitersFirst:     {faults(1, 3), InTurn},
		KeyShare:         {faults(1, 2), Forgotten},
		ReapLooksAgain:   {promotion, Deadline},
		HistoryCheck:     {promotion, Deadline},
		HistoryInCheck:   {promotion, Orphan},
		NewTTL:           {promotion, Deadline},
		AfterOutcome:     {small, Orphan},
		CancelReads:      {small, Orphan},
		GivesBack:        {small, Orphan},
		Withdraw:         {faults(1, 1), Orphan},
		WithdrawLocks:    {faults(1, 2), InTurn},
		LastWord:         {faults(1, 1), Orphan},
		ByToken:          {faults(1, 2), Committed},
		AgainUntilHeard:  {faults(1, 1), Orphan},
	}
}

// TestTeeth turns off each rule. The search must find what it is there for.
func TestTeeth(t *testing.T) {
	for rule := Rule(1); rule < rules; rule++ {
		if rule == TokenJump || rule == Rotation {
			continue // TestAsynchronousFailover
		}
		if !long && (rule == NeverRevived || rule == HistoryInCheck) {
			continue // they take more than a million states: MODEL=long
		}
		t.Run(rule.String(), func(t *testing.T) {
			tooth := teeth()[rule]
			b := tooth.bounds
			b.Off = rule
			r := Search(b, far)
			t.Logf("%s, after %d states, %v", r.Broken, r.States, r.Took.Round(time.Millisecond))
			if r.Broken != tooth.finds {
				t.Errorf("finds %q, want %q:\n%s", r.Broken, tooth.finds, strings.Join(r.Trace, "\n"))
			}
		})
	}
}
