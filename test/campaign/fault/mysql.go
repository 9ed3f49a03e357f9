package fault

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var mysqlKinds = []Kind{
	{Name: "kill-mysql", part: server, weight: 2, least: time.Second, most: 5 * time.Second, forgets: true, strike: killMySQL},
	{Name: "freeze-mysql", part: server, weight: 2, least: time.Second, most: 6 * time.Second, strike: freezeMySQL},
	{Name: "restart-mysql", part: server, weight: 1, least: 0, most: time.Second, strike: restartMySQL},
	{Name: "kill-connections", part: server, weight: 2, least: time.Second, most: 4 * time.Second, strike: killConnections},
	{Name: "locked-rows", part: server, weight: 2, least: time.Second, most: 4 * time.Second, strike: lockedRows},
	{Name: "failover", part: server, weight: 2, least: 6 * time.Second, most: 9 * time.Second, forgets: true, strike: failover},
	{Name: "failover-behind", part: server, weight: 2, least: 6 * time.Second, most: 9 * time.Second, forgets: true, strike: failoverBehind},
	{Name: "mysql-disk-full", part: server, weight: 1, least: 2 * time.Second, most: 5 * time.Second, forgets: true, strike: mysqlDiskFull},
}

// killMySQL kills the primary. It recovers when it is started again.
func killMySQL(s *strike) (int, error) {
	s.World.MySQL.Primary().Kill()
	bites := s.away()
	return healed(bites, s.World.MySQL.Restart())
}

// freezeMySQL stops the primary: its connections stay open.
func freezeMySQL(s *strike) (int, error) {
	primary := s.World.MySQL.Primary()
	primary.Freeze()
	defer primary.Thaw()
	return s.away(), nil
}

// restartMySQL restarts the primary as an operator does.
func restartMySQL(s *strike) (int, error) {
	if err := s.World.MySQL.Do("SHUTDOWN"); err != nil {
		return 0, err
	}
	bites := s.last(func() int {
		if s.World.MySQL.Primary().Runs() {
			return 0
		}
		return 1
	})
	return healed(bites, s.World.MySQL.Restart())
}

// killConnections ends the connections of all sidecars again and again, whatever they do.
func killConnections(s *strike) (int, error) {
	var failed error
	bites := s.during(func() bool {
		s.rest(between(s.rng, 0, 400*time.Millisecond))
		failed = errors.Join(failed, s.World.MySQL.KillSidecars())
		return failed == nil
	})
	return bites, failed
}

// lockedRows lets an operator's open transaction lock all rows of locks.
func lockedRows(s *strike) (int, error) {
	end, rows, err := s.World.MySQL.Lock()
	if end == nil {
		return 0, err
	}
	if err == nil {
		s.once()
	}
	return healed(rows, err, end())
}

// failover kills the primary and promotes its replica.
func failover(s *strike) (int, error) { return promoted(s, func(*world.MySQL) error { return nil }) }

// failoverBehind promotes a replica that has missed what was committed last.
func failoverBehind(s *strike) (int, error) {
	return promoted(s, func(m *world.MySQL) error {
		err := m.Behind()
		s.rest(between(s.rng, 50*time.Millisecond, time.Second))
		return err
	})
}

// promoted lasts for longer than the quiet time. It had an effect if the new primary answers. The old one becomes its
// replica for the next failover.
func promoted(s *strike, before func(*world.MySQL) error) (int, error) {
	defer s.replaces(history.Replaced)()
	m := s.World.MySQL
	if err := errors.Join(before(m), m.Failover()); err != nil {
		return 0, err
	}
	bites := s.during(func() bool { return s.World.Store.Answers(500*time.Millisecond) == nil })
	return healed(bites, m.Rejoin())
}

// mysqlDiskFull leaves no room. A server that waits for room notices it a minute after there is some, so an operator restarts it.
func mysqlDiskFull(s *strike) (int, error) {
	m := s.World.MySQL
	before := m.DiskFull()
	room, err := m.Fill()
	if err != nil {
		return 0, errors.Join(err, room())
	}
	bites := s.last(func() int { return m.DiskFull() - before })
	return healed(bites, room(), m.Restart(), m.Replica().Again("--read-only=ON"), m.Rejoin())
}
