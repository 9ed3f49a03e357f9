package fault

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var redisKinds = []Kind{
	{Name: "kill-primary", part: server, weight: 2, least: time.Second, most: 5 * time.Second, forgets: true, strike: killPrimary},
	{Name: "kill-behind", part: server, weight: 2, least: time.Second, most: 4 * time.Second, forgets: true, strike: killBehind},
	{Name: "freeze-primary", part: server, weight: 1, least: 2 * time.Second, most: 6 * time.Second, forgets: true, strike: freezePrimary},
	{Name: "freeze-redis", part: server, weight: 1, least: 300 * time.Millisecond, most: time.Second, strike: freezeRedis},
	{Name: "isolate-primary", part: server, weight: 1, least: 2 * time.Second, most: 6 * time.Second, forgets: true, strike: isolatePrimary},
	{Name: "kill-replica", part: server, weight: 1, least: 0, most: 2 * time.Second, strike: killReplica},
	{Name: "restart-primary", part: server, weight: 1, least: 0, most: time.Second, forgets: true, strike: restartPrimary},
	{Name: "restart-empty", part: server, weight: 1, least: 0, most: time.Second, forgets: true, strike: restartEmpty},
	{Name: "memory-full", part: server, weight: 1, least: 2 * time.Second, most: 5 * time.Second, strike: memoryFull},
	{Name: "disk-full", part: server, weight: 1, least: time.Second, most: 2 * time.Second, forgets: true, strike: redisDiskFull},
	{Name: "kill-letters", part: server, weight: 1, least: time.Second, most: 3 * time.Second, strike: killLetters},
	{Name: "flush-functions", part: server, weight: 1, least: 500 * time.Millisecond, most: time.Second, strike: flushFunctions},
}

// replaces notes a time in which the server may forget what it confirmed. Session locks are promised to have one holder
// nevertheless. It lasts until the quiet time is over.
func (s *strike) replaces(kind history.Kind) (end func()) {
	op := s.Recorder.Begin(history.Op{Kind: kind, Sidecar: -1, Note: s.String()})
	return func() {
		s.rest(s.quietTime())
		s.Recorder.End(op)
	}
}

// quietTime is the longest that a quiet time can be. store/redis rounds TTLs up by an eighth.
func (s *strike) quietTime() time.Duration { return s.LongestTTL + s.LongestTTL/8 + time.Second }

// failover lets a fault of the primary last until the sentinel has promoted the replica.
func (s *strike) failover(old *world.RedisNode) int {
	return s.last(func() int {
		if s.World.Redis.Promoted(s.World.Redis.Other(old)) {
			return 1
		}
		return 0
	})
}

// killPrimary kills the primary, which comes back as the replica.
func killPrimary(s *strike) (int, error) {
	defer s.replaces(history.Replaced)()
	old := s.World.Redis.Primary()
	old.Kill()
	bites := s.failover(old)
	return healed(bites, s.World.Redis.Join(old))
}

// killBehind does so when the replica has missed what was granted and released last.
func killBehind(s *strike) (int, error) {
	defer s.replaces(history.Replaced)()
	old := s.World.Redis.Primary()
	_, err := s.World.Redis.Other(old).Ask("REPLICAOF", "127.0.0.1", "1")
	s.rest(between(s.rng, 100*time.Millisecond, time.Second))
	old.Kill()
	bites := s.failover(old)
	return healed(bites, err, s.World.Redis.Join(old))
}

// freezePrimary stops the primary until another one is there. It still believes that it is one when it goes on.
func freezePrimary(s *strike) (int, error) {
	defer s.replaces(history.Replaced)()
	old := s.World.Redis.Primary()
	old.Freeze()
	bites := s.failover(old)
	// It confirms what it had received before it learns that it is no primary any more: docs/guarantees.md, A7.
	op := s.Recorder.Begin(history.Op{Kind: history.Unpromised, Sidecar: -1, Note: s.String()})
	defer func() { s.rest(s.TTL); s.Recorder.End(op) }()
	old.Thaw()
	return healed(bites, s.World.Redis.Join(old))
}

// freezeRedis stops the primary for less time than the sentinel waits.
func freezeRedis(s *strike) (int, error) {
	primary := s.World.Redis.Primary()
	primary.Freeze()
	bites := 0
	if s.World.Store.Answers(200*time.Millisecond) != nil {
		bites = 1
	}
	s.rest(s.Length - 200*time.Millisecond)
	primary.Thaw()
	return bites, nil
}

// isolatePrimary cuts the primary off from its replica and the sentinel. Sidecars still reach it, but it takes no writes.
func isolatePrimary(s *strike) (int, error) {
	defer s.replaces(history.Replaced)()
	old := s.World.Redis.Primary()
	_, err := old.Ask("CONFIG", "SET", "min-replicas-to-write", "1")
	old.Isolate()
	bites := s.failover(old)
	old.Rejoin()
	err = errors.Join(err, s.World.Redis.Join(old))
	_, err2 := old.Ask("CONFIG", "SET", "min-replicas-to-write", "0")
	return healed(bites, err, err2)
}

// killReplica kills the replica. Nobody should notice.
func killReplica(s *strike) (int, error) {
	replica := s.World.Redis.Other(s.World.Redis.Primary())
	replica.Kill()
	s.once()
	return healed(1, s.World.Redis.Join(replica))
}

// restartPrimary kills the primary, and starts it from its files before the sentinel has noticed.
func restartPrimary(s *strike) (int, error) {
	return s.restart(history.Replaced, func(*world.RedisNode) error { return nil })
}

// restartEmpty does so without its files: the replica forgets everything, too. How long others may believe in their locks, only
// they know, so exclusion is not promised if one of them is cut off meanwhile.
func restartEmpty(s *strike) (int, error) {
	return s.restart(history.Unpromised, (*world.RedisNode).Forget)
}

func (s *strike) restart(kind history.Kind, between func(*world.RedisNode) error) (int, error) {
	defer s.replaces(kind)()
	primary := s.World.Redis.Primary()
	primary.Kill()
	err := between(primary)
	if err == nil {
		err = primary.Again()
	}
	s.once()
	return healed(1, err, s.World.Redis.Join(s.World.Redis.Other(primary)))
}

// memoryFull leaves no memory: nothing new is granted, and what is held goes on.
func memoryFull(s *strike) (int, error) {
	primary := s.World.Redis.Primary()
	_, err := primary.Ask("CONFIG", "SET", "maxmemory", "1mb")
	bites := s.during(func() bool { return s.World.Redis.Refuses("OOM") })
	_, err2 := primary.Ask("CONFIG", "SET", "maxmemory", "0")
	return healed(bites, err, err2)
}

// redisDiskFull leaves no room for the servers' files. The replica may end then, and an operator starts it again. It takes less time than the
// sentinel waits: the primary answers its pings with the error, too, so the sentinel would promote the replica.
func redisDiskFull(s *strike) (int, error) {
	room, err := s.World.Redis.Fill()
	bites := 0
	if err == nil {
		bites = s.during(func() bool { return s.World.Redis.Refuses("MISCONF") })
	}
	return healed(bites, err, room(), s.World.Redis.Join(s.World.Redis.Other(s.World.Redis.Primary())))
}

// killLetters closes the connections by which sidecars hear of letters.
func killLetters(s *strike) (int, error) {
	bites := s.during(func() bool {
		s.rest(between(s.rng, 0, 300*time.Millisecond))
		killed, err := s.World.Redis.Primary().Ask("CLIENT", "KILL", "TYPE", "PUBSUB")
		n, _ := killed.(int64)
		return err == nil && n > 0
	})
	return bites, nil
}

// flushFunctions removes the functions of all sidecars.
func flushFunctions(s *strike) (int, error) {
	var failed error
	bites := s.during(func() bool {
		_, err := s.World.Redis.Primary().Ask("FUNCTION", "FLUSH")
		failed = errors.Join(failed, err)
		return err == nil
	})
	return bites, failed
}
