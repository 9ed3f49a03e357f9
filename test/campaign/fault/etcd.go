package fault

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// No fault steps the clock of a server: etcd counts its leases by the clock of the kernel that nobody sets.
var etcdKinds = []Kind{
	{Name: "kill-leader", part: server, weight: 2, least: time.Second, most: 5 * time.Second, strike: killLeader},
	{Name: "freeze-leader", part: server, weight: 2, least: 2 * time.Second, most: 7 * time.Second, strike: freezeLeader},
	{Name: "isolate-leader", part: server, weight: 2, least: 2 * time.Second, most: 7 * time.Second, strike: isolateLeader},
	{Name: "isolate-follower", part: server, weight: 1, least: 2 * time.Second, most: 6 * time.Second, strike: isolateFollower},
	{Name: "kill-majority", part: server, weight: 1, least: time.Second, most: 6 * time.Second, strike: killMajority},
	{Name: "freeze-majority", part: server, weight: 1, least: time.Second, most: 6 * time.Second, strike: freezeMajority},
	{Name: "restart-servers", part: server, weight: 1, least: 0, most: time.Second, strike: restartServers},
	{Name: "compact", part: server, weight: 1, least: time.Second, most: 3 * time.Second, strike: compact},
	{Name: "quota-full", part: server, weight: 1, least: time.Second, most: 4 * time.Second, strike: quotaFull},
	{Name: "compact-behind", part: sidecar, weight: 1, least: time.Second, most: 3 * time.Second, strike: compactBehind},
	{Name: "clock-sidecar", part: sidecar, weight: 1, least: 2 * time.Second, most: 4 * time.Second, strike: clockSidecar},
}

// replaced lets a fault of the leader last until another server leads.
func (s *strike) replaced(leader *etcdtest.Node) int {
	return s.last(func() int {
		if s.World.Etcd.HasLeader(leader) {
			return 1
		}
		return 0
	})
}

// killLeader kills the server that leads, and starts it again.
func killLeader(s *strike) (int, error) {
	leader, err := s.World.Etcd.Leader()
	if err != nil {
		return 0, err
	}
	leader.Kill()
	bites := s.replaced(leader)
	return healed(bites, s.World.Etcd.Revive())
}

// freezeLeader stops the server that leads: it still believes so when it goes on.
func freezeLeader(s *strike) (int, error) {
	leader, err := s.World.Etcd.Leader()
	if err != nil {
		return 0, err
	}
	leader.Freeze()
	bites := s.replaced(leader)
	s.thaw(leader)
	return bites, nil
}

// thaw lets servers go on. One that led when it was frozen believes so for a moment, and may end leases that were renewed
// at the next leader (docs/guarantees.md, A7). So exclusion is not promised to anybody until it has followed for a while.
func (s *strike) thaw(nodes ...*etcdtest.Node) {
	op := s.Recorder.Begin(history.Op{Kind: history.Unpromised, Sidecar: -1, Note: s.String()})
	defer func() { s.Recorder.End(op) }()
	for _, n := range nodes {
		n.Thaw()
	}
	s.rest(s.TTL)
}

// isolateLeader cuts the server that leads off from the others. Sidecars still reach it.
func isolateLeader(s *strike) (int, error) {
	leader, err := s.World.Etcd.Leader()
	if err != nil {
		return 0, err
	}
	leader.Isolate()
	defer leader.Rejoin()
	return s.replaced(leader), nil
}

// isolateFollower does so to another server. It had an effect if that server knew of no leader.
func isolateFollower(s *strike) (int, error) {
	follower, err := s.follower()
	if err != nil {
		return 0, err
	}
	follower.Isolate()
	defer follower.Rejoin()
	return s.during(func() bool {
		status, err := follower.Status()
		return err == nil && status.Leader == 0
	}), nil
}

func (s *strike) follower() (*etcdtest.Node, error) {
	leader, err := s.World.Etcd.Leader()
	for _, n := range s.World.Etcd.Nodes() {
		if n != leader {
			return n, err
		}
	}
	return nil, errors.Join(err, errors.New("there is one server only"))
}

// most are the leader and another server, without which there is no majority.
func (s *strike) most() ([]*etcdtest.Node, error) {
	follower, err := s.follower()
	if err != nil {
		return nil, err
	}
	leader, err := s.World.Etcd.Leader()
	return []*etcdtest.Node{leader, follower}, err
}

func killMajority(s *strike) (int, error) {
	nodes, err := s.most()
	if err != nil {
		return 0, err
	}
	for _, n := range nodes {
		n.Kill()
	}
	bites := s.away()
	return healed(bites, s.World.Etcd.Revive())
}

func freezeMajority(s *strike) (int, error) {
	nodes, err := s.most()
	if err != nil {
		return 0, err
	}
	for _, n := range nodes {
		n.Freeze()
	}
	bites := s.away()
	s.thaw(nodes...)
	return bites, nil
}

// restartServers restarts one server after the other, as an operator does for an upgrade.
func restartServers(s *strike) (int, error) {
	for i, n := range s.World.Etcd.Nodes() {
		if err := n.Again(); err != nil {
			return i, err
		}
		s.rest(s.Length / 3)
	}
	return len(s.World.Etcd.Nodes()), nil
}

// compact compacts again and again under the load.
func compact(s *strike) (int, error) {
	var failed error
	bites := s.during(func() bool {
		failed = errors.Join(failed, s.World.Etcd.Compact())
		return failed == nil
	})
	return bites, failed
}

// compactBehind compacts what a sidecar has not seen yet, because it is cut off: its letters are lost.
func compactBehind(s *strike) (int, error) {
	net := s.sidecar().Net
	bites := net.Break() // none, if it has not connected since another fault
	bites += s.during(func() bool {
		_, err := net.Probe(time.Second)
		return err != nil
	})
	return healed(bites, s.World.Etcd.Compact(), net.Mend())
}

// quotaFull fills the servers up to their quota. Then they refuse what is new, until an operator has made room.
func quotaFull(s *strike) (int, error) {
	room, err := s.World.Etcd.Fill()
	bites := 0
	if err == nil {
		bites = s.during(s.World.Etcd.Full)
	}
	err = errors.Join(err, room())
	if err == nil && s.World.Etcd.Full() {
		err = errors.New("the servers are full after all was removed")
	}
	return bites, err
}

// clockSidecar sets the clock of a sidecar's machine, and later sets it back. Nothing may depend on it. It had an effect if
// a grant shows the other time.
func clockSidecar(s *strike) (int, error) {
	by := between(s.rng, time.Minute, 48*time.Hour)
	if s.rng.IntN(2) == 0 {
		by = -by
	}
	if err := s.sidecar().Step(by); err != nil {
		return 0, err
	}
	held := s.sidecar().Hold("fault:" + s.String())
	bites := s.during(func() bool {
		defer held.Drop()
		return held.Acquire() && time.Until(held.At.Add(-by)).Abs() < time.Minute/2
	})
	return healed(bites, s.sidecar().Step(0))
}
