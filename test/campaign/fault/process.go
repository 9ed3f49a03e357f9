package fault

import (
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

var sidecarKinds = []Kind{
	{Name: "kill-sidecar", part: sidecar, weight: 2, least: 0, most: 4 * time.Second, strike: killSidecar},
	{Name: "freeze-sidecar", part: sidecar, weight: 2, least: 500 * time.Millisecond, most: 6 * time.Second, strike: freezeSidecar},
	{Name: "drain-sidecar", part: sidecar, weight: 1, least: 0, most: time.Second, strike: drainSidecar},
	{Name: "suspend", part: sidecar, weight: 1, least: 500 * time.Millisecond, most: time.Second, strike: suspend},
	{Name: "kill-app", part: app, weight: 1, least: 0, most: time.Second, strike: killApp},
	{Name: "freeze-app", part: app, weight: 1, least: time.Second, most: 6 * time.Second, strike: freezeApp},
}

// killSidecar kills a sidecar, and starts another in its folder.
func killSidecar(s *strike) (int, error) {
	s.over()
	if err := s.sidecar().Kill(); err != nil {
		return 0, err
	}
	s.last()
	return healed(1, s.sidecar().Start())
}

// freezeSidecar stops a sidecar, often for longer than its leases last.
func freezeSidecar(s *strike) (int, error) {
	if err := s.sidecar().Freeze(); err != nil {
		return 0, err
	}
	s.last()
	return healed(1, s.sidecar().Thaw())
}

// drainSidecar ends a sidecar as Kubernetes does.
func drainSidecar(s *strike) (int, error) {
	s.over()
	if err := s.sidecar().Drain(); err != nil {
		return 0, errors.Join(err, s.sidecar().Start())
	}
	s.last()
	return healed(1, s.sidecar().Start())
}

// suspend makes a sidecar believe that its machine slept for longer than leases last.
func suspend(s *strike) (int, error) {
	before, err := s.sidecar().Lost()
	if err != nil {
		return 0, fmt.Errorf("before: %w", err)
	}
	s.over()
	if err := s.sidecar().Slept(s.LongestTTL); err != nil {
		return 0, err
	}
	bites := 0
	s.during(func() bool {
		lost, err := s.sidecar().Lost()
		if err == nil {
			bites = lost - before
		}
		return err == nil
	})
	return bites, nil
}

// killApp kills a process of clients, whose connections close then.
func killApp(s *strike) (int, error) {
	s.Recorder.Add(history.Op{Kind: history.Ended, Process: s.app().Name(), Sidecar: -1, Note: s.String()})
	if err := s.app().Kill(); err != nil {
		return 0, err
	}
	s.last()
	return healed(1, s.app().Start())
}

// freezeApp stops a process of clients, whose connections stay.
func freezeApp(s *strike) (int, error) {
	if err := s.app().Freeze(); err != nil {
		return 0, err
	}
	s.last()
	return healed(1, s.app().Thaw())
}
