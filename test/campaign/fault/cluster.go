package fault

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// Where a kind has the name of one with sentinels, it does the same to one of the primaries.
var clusterKinds = []Kind{
	{Name: "kill-primary", part: server, weight: 2, least: time.Second, most: 5 * time.Second, forgets: true, strike: onePrimary(clusterKill)},
	{Name: "kill-behind", part: server, weight: 2, least: time.Second, most: 4 * time.Second, forgets: true, strike: onePrimary(clusterKillBehind)},
	{Name: "freeze-primary", part: server, weight: 1, least: 2 * time.Second, most: 6 * time.Second, forgets: true, strike: onePrimary(clusterFreeze)},
	{Name: "freeze-redis", part: server, weight: 1, least: 300 * time.Millisecond, most: time.Second, strike: onePrimary(clusterFreezeBriefly)},
	{Name: "isolate-primary", part: server, weight: 2, least: 2 * time.Second, most: 6 * time.Second, forgets: true, strike: onePrimary(clusterIsolate)},
	{Name: "kill-replica", part: server, weight: 1, least: 0, most: 2 * time.Second, strike: onePrimary(clusterKillReplica)},
	{Name: "restart-primary", part: server, weight: 1, least: 0, most: time.Second, forgets: true, strike: onePrimary(clusterRestart)},
	{Name: "restart-empty", part: server, weight: 1, least: 0, most: time.Second, forgets: true, strike: onePrimary(clusterRestartEmpty)},
	{Name: "switch-over", part: server, weight: 1, least: 0, most: time.Second, strike: onePrimary(clusterSwitchOver)},
	{Name: "reshard", part: server, weight: 3, least: 300 * time.Millisecond, most: 4 * time.Second, strike: reshard},
	{Name: "memory-full", part: server, weight: 1, least: 2 * time.Second, most: 5 * time.Second, strike: clusterMemoryFull},
	{Name: "disk-full", part: server, weight: 1, least: 2 * time.Second, most: 4 * time.Second, forgets: true, strike: clusterDiskFull},
	{Name: "kill-letters", part: server, weight: 1, least: time.Second, most: 3 * time.Second, strike: clusterKillLetters},
	{Name: "flush-functions", part: server, weight: 1, least: 500 * time.Millisecond, most: time.Second, strike: clusterFlushFunctions},
}

// onePrimary strikes one of the primaries, and waits until the cluster is complete again.
func onePrimary(f func(s *strike, primary, replica *world.RedisNode) (int, error)) func(*strike) (int, error) {
	return func(s *strike) (int, error) {
		primary, err := s.World.Cluster.One(s.rng)
		if err != nil {
			return 0, err
		}
		replica, err := s.World.Cluster.Replica(primary)
		if err != nil {
			return 0, err
		}
		bites, err := f(s, primary, replica)
		return healed(bites, err, s.World.Cluster.Settled())
	}
}

// promotes lets a fault last until the others have promoted a replica.
func (s *strike) promotes(replica *world.RedisNode) int {
	return s.last(func() int {
		if s.World.Cluster.Promoted(replica) {
			return 1
		}
		return 0
	})
}

// forgetting does f in a time in which a server may forget what it confirmed, and goes on to its end when the cluster is complete.
func (s *strike) forgetting(kind history.Kind, f func() (int, error)) (int, error) {
	defer s.replaces(kind)()
	bites, err := f()
	return healed(bites, err, s.World.Cluster.Settled())
}

func clusterKill(s *strike, primary, replica *world.RedisNode) (int, error) {
	return s.forgetting(history.Replaced, func() (int, error) {
		primary.Kill()
		return s.promotes(replica), nil
	})
}

// clusterKillBehind kills a primary whose replica has missed what was granted and released last. An operator promotes the replica at once, so
// leases that it has missed still live.
func clusterKillBehind(s *strike, primary, replica *world.RedisNode) (int, error) {
	return s.forgetting(history.Replaced, func() (int, error) {
		end := s.World.Cluster.Behind(replica, primary)
		defer end()
		s.rest(between(s.rng, 100*time.Millisecond, time.Second))
		primary.Kill()
		_, err := replica.Ask("CLUSTER", "FAILOVER", "TAKEOVER")
		return healed(s.promotes(replica), err)
	})
}

func clusterFreeze(s *strike, primary, replica *world.RedisNode) (int, error) {
	return s.forgetting(history.Replaced, func() (int, error) {
		primary.Freeze()
		bites := s.promotes(replica)
		// As in freezePrimary.
		op := s.Recorder.Begin(history.Op{Kind: history.Unpromised, Sidecar: -1, Note: s.String()})
		primary.Thaw()
		err := s.World.Cluster.Settled()
		s.rest(s.TTL)
		s.Recorder.End(op)
		return bites, err
	})
}

func clusterFreezeBriefly(s *strike, primary, _ *world.RedisNode) (int, error) {
	primary.Freeze()
	defer primary.Thaw()
	bites := 0
	if s.World.Store.Answers(200*time.Millisecond) != nil {
		bites = 1
	}
	s.rest(s.Length - 200*time.Millisecond)
	return bites, nil
}

// clusterIsolate cuts a primary off from all other servers. Sidecars still reach it, but it takes no writes.
func clusterIsolate(s *strike, primary, replica *world.RedisNode) (int, error) {
	return s.forgetting(history.Replaced, func() (int, error) {
		_, err := primary.Ask("CONFIG", "SET", "min-replicas-to-write", "1")
		s.World.Cluster.Isolate(primary)
		bites := s.promotes(replica)
		s.World.Cluster.Rejoin(primary)
		err2 := s.World.Cluster.Settled()
		_, err3 := primary.Ask("CONFIG", "SET", "min-replicas-to-write", "0")
		return healed(bites, err, err2, err3)
	})
}

func clusterKillReplica(s *strike, _, replica *world.RedisNode) (int, error) {
	replica.Kill()
	s.once()
	return 1, nil
}

func clusterRestart(s *strike, primary, _ *world.RedisNode) (int, error) {
	return s.restarts(history.Replaced, primary, func() error { return nil })
}

func clusterRestartEmpty(s *strike, primary, _ *world.RedisNode) (int, error) {
	return s.restarts(history.Unpromised, primary, primary.Forget)
}

// restarts kills a primary and starts it before the others have noticed.
func (s *strike) restarts(kind history.Kind, primary *world.RedisNode, between func() error) (int, error) {
	return s.forgetting(kind, func() (int, error) {
		primary.Kill()
		err := errors.Join(between(), primary.Again())
		s.once()
		return 1, err
	})
}

// takesOver notes that another server takes over what the one before has confirmed. The quiet time that follows goes on after the
// fault.
func (s *strike) takesOver() (end func()) {
	op := s.Recorder.Begin(history.Op{Kind: history.Quiet, Sidecar: -1, Note: s.String()})
	return func() {
		op.Return = history.Now() + int64(s.quietTime())
		s.Recorder.End(op)
	}
}

// clusterSwitchOver lets a replica take over as an operator does. Nothing is forgotten.
func clusterSwitchOver(s *strike, _, replica *world.RedisNode) (int, error) {
	defer s.takesOver()()
	_, err := replica.Ask("CLUSTER", "FAILOVER")
	bites := s.promotes(replica)
	return healed(bites, err, s.World.Cluster.Settled())
}

// all is more keys than a slot has.
const all = 10_000

// reshard moves one of the slots with locks to another primary, and halts when some of its keys have moved.
func reshard(s *strike) (int, error) {
	defer s.takesOver()()
	move, err := s.World.Cluster.Slot(s.rng)
	if err != nil {
		return 0, err
	}
	var names []string
	for end := time.Now().Add(patience); err == nil && len(names) == 0 && time.Now().Before(end); s.rest(10 * time.Millisecond) { // renewals fill an empty server
		names, err = move.Keys(all)
	}
	err = errors.Join(err, move.Begin())
	s.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if len(names) > 0 {
		err = errors.Join(err, move.Move(names[:(len(names)+1)/2]...))
	}
	s.once()
	return healed(len(names), err, move.End(), s.World.Cluster.Settled())
}

// clusterMemoryFull leaves no memory on any server.
func clusterMemoryFull(s *strike) (int, error) {
	err := s.onPrimaries("CONFIG", "SET", "maxmemory", "1mb")
	bites := s.during(func() bool { return s.World.Cluster.Refuses("OOM") })
	return healed(bites, err, s.onPrimaries("CONFIG", "SET", "maxmemory", "0"))
}

func (s *strike) onPrimaries(args ...any) (err error) {
	for _, n := range s.World.Cluster.Primaries() {
		_, failed := n.Ask(args...)
		err = errors.Join(err, failed)
	}
	return err
}

// clusterDiskFull leaves no room for the servers' files. Replicas end then, and an operator starts them again.
func clusterDiskFull(s *strike) (int, error) {
	room, err := s.World.Cluster.Fill()
	bites := 0
	if err == nil {
		bites = s.during(func() bool { return s.World.Cluster.Refuses("MISCONF") })
	}
	return healed(bites, err, room(), s.World.Cluster.Settled())
}

func clusterKillLetters(s *strike) (int, error) {
	bites := s.during(func() bool {
		s.rest(between(s.rng, 0, 300*time.Millisecond))
		killed := int64(0)
		for _, n := range s.World.Cluster.Primaries() {
			answer, _ := n.Ask("CLIENT", "KILL", "TYPE", "PUBSUB")
			some, _ := answer.(int64)
			killed += some
		}
		return killed > 0
	})
	return bites, nil
}

func clusterFlushFunctions(s *strike) (int, error) {
	var failed error
	bites := s.during(func() bool {
		err := s.onPrimaries("FUNCTION", "FLUSH")
		failed = errors.Join(failed, err)
		return err == nil
	})
	return bites, failed
}
