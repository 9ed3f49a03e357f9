package fault

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// A clock that was stepped is not stepped back at the fault's end: that would be the
// opposite fault. It ends when no lease is left that the step has changed, so that two
// never add up; Run sees to it that each lasts that long.
var clockKinds = []Kind{
	{Name: "clock-back", part: server, weight: 1, least: 5 * time.Second, most: 7 * time.Second, strike: clockBack},
	{Name: "clock-nudge", part: server, weight: 1, least: 5 * time.Second, most: 7 * time.Second, strike: clockNudge},
	{Name: "clock-ahead", part: server, weight: 1, least: 5 * time.Second, most: 7 * time.Second, strike: clockAhead},
}

// clocked is a server whose clock can be stepped.
type clocked interface {
	Step(by time.Duration)
	Ahead() (time.Duration, error)
}

// step steps the database's clock and returns 1 when the database goes by it.
func (s *strike) step(by time.Duration) (int, error) {
	const near = 10 * time.Millisecond
	store := s.World.Store.(clocked)
	before, err := store.Ahead()
	if err != nil {
		return 0, err
	}
	store.Step(by)
	after, err := store.Ahead()
	if err != nil {
		return 0, err
	}
	if d := after - before - by; d.Abs() > max(near, by.Abs()/2) {
		return 0, fmt.Errorf("the clock was stepped by %s and went by %s", by, after-before)
	}
	return 1, nil
}

// clockBack steps it back, by less than the fault lasts. Leases last longer by as much.
func clockBack(s *strike) (int, error) {
	bites, err := s.step(-between(s.rng, 100*time.Millisecond, 2*s.TTL))
	s.once()
	return bites, err
}

// clockNudge steps it ahead by less than the margin that every lock has: exclusion holds.
func clockNudge(s *strike) (int, error) {
	const margin = 50 * time.Millisecond // of the shortest leases
	bites, err := s.step(margin * 4 / 5)
	s.once()
	return bites, err
}

// clockAhead steps it ahead by more. Living leases end: exclusion is not promised to
// anybody until they have ended by the sidecars' clocks too.
func clockAhead(s *strike) (int, error) {
	op := s.Recorder.Begin(history.Op{Kind: history.Unpromised, Sidecar: -1, Note: s.String()})
	defer func() { s.Recorder.End(op) }()
	bites, err := s.step(between(s.rng, s.TTL, 4*s.TTL))
	s.once()
	return bites, err
}
