package fault

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

var sidecarKinds = []Kind{
	{Name: "kill-sidecar", part: sidecar, weight: 2, least: 0, most: 4 * time.Second, strike: killSidecar},
	{Name: "freeze-sidecar", part: sidecar, weight: 2, least: 500 * time.Millisecond, most: 6 * time.Second, strike: freezeSidecar},
	{Name: "drain-sidecar", part: sidecar, weight: 1, least: 0, most: time.Second, strike: drainSidecar},
	{Name: "suspend", part: sidecar, weight: 1, least: 3 * time.Second, most: 5 * time.Second, strike: suspend},
	{Name: "kill-app", part: app, weight: 1, least: 0, most: time.Second, strike: killApp},
	{Name: "freeze-app", part: app, weight: 1, least: time.Second, most: 6 * time.Second, strike: freezeApp},
}

// ends records that sessions are over while f ends them: those of the struck sidecar, or
// of a process of clients.
func (s *strike) ends(whose string, f func() error) error {
	op := history.Op{Kind: history.Ended, Whose: whose, Sidecar: s.Target, Note: s.String()}
	if whose != "" {
		op.Sidecar = -1
	}
	op = s.Recorder.Begin(op)
	defer func() { s.Recorder.End(op) }()
	return f()
}

// killSidecar kills a sidecar, and starts another in its folder.
func killSidecar(s *strike) (int, error) {
	if err := s.ends("", s.sidecar().Kill); err != nil {
		return 0, err
	}
	s.once()
	return healed(1, s.sidecar().Start())
}

// freezeSidecar stops a sidecar, often for longer than its leases last.
func freezeSidecar(s *strike) (int, error) {
	if err := s.sidecar().Freeze(); err != nil {
		return 0, err
	}
	s.once()
	return healed(1, s.sidecar().Thaw())
}

// drainSidecar ends a sidecar as Kubernetes does.
func drainSidecar(s *strike) (int, error) {
	if err := s.ends("", s.sidecar().Drain); err != nil {
		return 0, errors.Join(err, s.sidecar().Start())
	}
	s.once()
	return healed(1, s.sidecar().Start())
}

// suspend makes a sidecar believe, again and again, that its machine slept for longer than
// leases last. It had an effect if a lock was lost.
func suspend(s *strike) (int, error) {
	held := s.sidecar().Hold("fault:" + s.String())
	defer held.Drop()
	var failed error
	bites := s.during(func() bool {
		if !held.Acquire() {
			return false // another fault keeps it from that
		}
		failed = errors.Join(failed, s.ends("", func() error {
			err := s.sidecar().Slept(s.LongestTTL)
			s.rest(10 * time.Millisecond) // within a millisecond it has seen it
			return err
		}))
		defer s.rest(s.TTL / 4)
		return held.Lost()
	})
	return bites, failed
}

// killApp kills a process of clients, whose connections close then.
func killApp(s *strike) (int, error) {
	if err := s.ends(s.app().Name(), s.app().Kill); err != nil {
		return 0, err
	}
	s.once()
	return healed(1, s.app().Start())
}

// freezeApp stops a process of clients, whose connections stay.
func freezeApp(s *strike) (int, error) {
	if err := s.app().Freeze(); err != nil {
		return 0, err
	}
	s.once()
	return healed(1, s.app().Thaw())
}
