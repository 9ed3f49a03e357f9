package fault

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

var databaseKinds = []Kind{
	{Name: "kill-postgres", part: server, weight: 2, least: 0, most: 5 * time.Second, forgets: true, strike: killPostgres},
	{Name: "freeze-postgres", part: server, weight: 2, least: time.Second, most: 6 * time.Second, strike: freezePostgres},
	{Name: "restart-postgres", part: server, weight: 1, least: 0, most: time.Second, strike: restartPostgres},
	{Name: "crash-backend", part: server, weight: 1, least: 0, most: time.Second, forgets: true, strike: crashBackend},
	{Name: "kill-listener", part: server, weight: 2, least: time.Second, most: 4 * time.Second, strike: killListener},
	{Name: "no-slots", part: server, weight: 1, least: 2 * time.Second, most: 6 * time.Second, forgets: true, strike: noSlots},
	{Name: "disk-full", part: server, weight: 1, least: 2 * time.Second, most: 5 * time.Second, forgets: true, strike: diskFull},
}

// killPostgres kills the server. It recovers when it is started again.
func killPostgres(s *strike) (int, error) {
	s.World.Postgres.Kill()
	bites := s.away()
	return healed(bites, s.World.Postgres.Restart())
}

// freezePostgres stops all processes of the server: its connections stay open.
func freezePostgres(s *strike) (int, error) {
	thaw, _, err := s.World.Postgres.Freeze()
	if err != nil {
		return 0, err
	}
	defer thaw()
	return s.away(), nil
}

// restartPostgres restarts the server as an operator does.
func restartPostgres(s *strike) (int, error) {
	cut, err := s.World.Postgres.Do("SELECT FROM pg_stat_activity WHERE usename = 'sidecar'")
	if err != nil {
		return 0, err
	}
	err = s.World.Postgres.Restart()
	s.once()
	return healed(cut, err)
}

// crashBackend kills one process of the server, which ends all the others then.
func crashBackend(s *strike) (int, error) {
	var failed error
	bites := 0
	s.last(func() int {
		if bites == 0 {
			bites, failed = s.World.Postgres.KillOne()
		}
		return bites
	})
	return bites, failed
}

// killListener cuts the sidecars' ears off between the commit of a hand-off and its news.
func killListener(s *strike) (int, error) {
	var killed atomic.Int64
	var hooks []*pgproxy.Hook
	for _, its := range s.World.Sidecars {
		hooks = append(hooks, its.Net.Statements.On("notify", pgproxy.BeforeSend, func() {
			n, _ := s.World.Postgres.Terminate("/* locksidecar:listen */%") // what did not end is not counted
			killed.Add(int64(n))
		}))
	}
	bites := s.last(func() int { return int(killed.Load()) })
	for _, hook := range hooks {
		hook.Disarm()
	}
	return bites, nil
}

// noSlots takes all connections away from sidecars.
func noSlots(s *strike) (int, error) {
	before := s.World.Postgres.Refused()
	release := s.World.Postgres.Occupy()
	defer release()
	_, err := s.World.Postgres.Terminate("%")
	bites := s.last(func() int { return s.World.Postgres.Refused() - before })
	return healed(bites, err)
}

// diskFull leaves no room. The server crashes when it cannot write its log, and does not
// come back before there is room again.
func diskFull(s *strike) (int, error) {
	before := s.World.Postgres.DiskFull()
	room, err := s.World.Postgres.Fill()
	if err != nil {
		return 0, errors.Join(err, room())
	}
	_, _ = s.World.Postgres.Do("SELECT pg_switch_wal()") // the next file has no room
	bites := s.last(func() int { return s.World.Postgres.DiskFull() - before })
	return bites, errors.Join(room(), s.World.Postgres.Recovered())
}
