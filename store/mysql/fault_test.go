package mysql_test

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// A swap whose server is killed, or does not answer, may have been carried out. Without a server nothing is sent. Records and
// leases outlive kill -9.
func TestOutcomeIsUnknownAfterSending(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	s.limit = time.Second
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	kept := r.Done(cas.Swap{Key: "ns/kept", Data: []byte("x"), Leases: []store.LeaseID{lease}})
	connected := func() {
		await.Until(t, "an open connection", func() bool {
			_, _, err := r.Load(r.Ctx, []string{"ns/kept"}, nil)
			return err == nil
		})
	}
	// If a look at the server has the open connection, the swap waits for the greeting of a new one, and is not sent. Then another one is tried.
	const most = 10
	for tries := 1; ; tries++ {
		connected()
		m.Freeze()
		_, err := r.SwapOne(cas.Swap{Key: "ns/key" + strconv.Itoa(tries), Data: []byte("x")})
		m.Thaw()
		await.Until(t, "the store works again", func() bool { return r.Ready() == nil && r.Keeps(lease) })
		if store.OutcomeUnknown(err) {
			break
		}
		if tries == most {
			t.Fatalf("a swap without an answer: %v", err)
		}
	}
	for tries := 1; ; tries++ {
		connected()
		m.Freeze()
		failed := make(chan error, 1)
		go func() {
			_, err := r.SwapOne(cas.Swap{Key: "ns/killed", Data: []byte("x")})
			failed <- err
		}()
		select {
		case err := <-failed:
			t.Fatalf("a frozen server answered: %v", err)
		case <-time.After(200 * time.Millisecond): // it is on its way
		}
		m.Kill()
		err := await.Receive(t, failed, "the swap's error")
		if store.OutcomeUnknown(err) {
			break
		}
		if tries == most {
			t.Fatalf("a swap whose server was killed: %v", err)
		}
		m.Restart(t)
		r.BecomesReady()
	}
	await.Until(t, "the outcome is known", func() bool {
		_, err := r.SwapOne(cas.Swap{Key: "ns/after", Data: []byte("x")})
		return store.Unavailable(err) && !store.OutcomeUnknown(err)
	})
	m.Restart(t)
	r.BecomesReady()
	await.Until(t, "the record and its lease are there", func() bool {
		records, _, err := r.Load(r.Ctx, []string{"ns/kept"}, nil)
		return err == nil && records[0].Version == kept.Version && records[0].States[0].Alive
	})
	if !r.Keeps(lease) {
		t.Error("the lease was not renewed")
	}
}

// A request that was not sent is known not to be carried out.
func TestOutcomeIsKnownWithoutAConnection(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	link := process.NewLink(t, m.Address)
	s.url, s.limit = s.At(link.Address), time.Second
	r := s.ready("one")
	link.Cut()
	await.Until(t, "no connection is left", func() bool {
		_, err := r.SwapOne(cas.Swap{Key: "ns/key"})
		return store.Unavailable(err) && !store.OutcomeUnknown(err)
	})
	m.Freeze()
	link.Mend()
	// The frozen server's kernel accepts the connection, and nobody greets the client.
	if _, err := r.SwapOne(cas.Swap{Key: "ns/key"}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("without a greeting: %v", err)
	}
	m.Thaw()
	r.BecomesReady()
}

// A connection that broke while it was idle is replaced, and the caller does not notice. Packets leave no row locked if their
// client is gone.
func TestCutConnections(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	link := process.NewLink(t, shared.Address)
	direct := s.ready("direct")
	s.url = s.At(link.Address)
	r := s.ready("one")
	held := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	lease := r.OpenLease(time.Minute)
	operator, watcher := s.session(), s.session()
	operator.exec("BEGIN")
	operator.exec("SELECT * FROM locksidecar_leases FOR UPDATE")
	unknown := make(chan error, 1)
	go func() {
		_, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: held.Version, Data: []byte("y"), Living: []store.LeaseID{lease}})
		unknown <- err
	}()
	watcher.awaitLockWait() // the packet has the record
	link.Cut()
	if err := await.Receive(t, unknown, "the error"); !store.OutcomeUnknown(err) {
		t.Errorf("a connection that broke during the packet: %v", err)
	}
	operator.exec("COMMIT")
	await.Until(t, "the record is not locked any more", func() bool {
		now := direct.LoadOne("ns/key")
		result, err := direct.SwapOne(cas.Swap{Key: "ns/key", Version: now.Version, Data: []byte("z")})
		return err == nil && result.Done
	})
	link.Mend()
	r.BecomesReady()
	r.Done(cas.Swap{Key: "ns/other", Data: []byte("x")})
	await.Until(t, "a renewal just after a cut", func() bool {
		r.BecomesReady() // it is not, if it looked between the two
		link.Cut()
		link.Mend()
		return r.Keeps(lease)
	})
}

// A packet that the server refuses is known not to be carried out, also if it is the last of the statements before COMMIT.
func TestOutcomeOfARefusalIsKnown(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	if _, err := r.SwapOne(cas.Swap{Key: strings.Repeat("k", 2000)}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a name of 2000 bytes: %v", err)
	}
	operator := s.session()
	operator.exec("CREATE TRIGGER refuse BEFORE INSERT ON locksidecar_letters FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'")
	_, err := r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x"), Letters: []cas.Letter{{To: "two", Key: "ns/key"}}})
	if !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a letter that is refused: %v", err)
	}
	operator.exec("DROP TRIGGER refuse")
	if found := r.LoadOne("ns/key"); found.Version != 0 {
		t.Errorf("it was carried out: %+v", found)
	}
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")}) // the row is not locked, and the connection is usable
	operator.exec("CREATE TRIGGER refuse BEFORE DELETE ON locksidecar_locks FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'")
	_, err = r.SwapOne(cas.Swap{Key: "ns/key", Version: r.LoadOne("ns/key").Version, Delete: true})
	if !store.OutcomeUnknown(err) {
		t.Errorf("a statement after the answer is refused, as COMMIT may be: %v", err)
	}
}

// If one packet of a call is refused, and the outcome of another is unknown, that of the call is unknown.
func TestOutcomeOfSeveralPackets(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	last := r.Done(cas.Swap{Key: "ns/last", Data: []byte("x")})
	operator := s.session()
	operator.exec("CREATE TRIGGER refuse BEFORE INSERT ON locksidecar_letters FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'")
	operator.exec("CREATE TRIGGER refuse_late BEFORE DELETE ON locksidecar_locks FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'")
	var swaps []cas.Swap
	for i := range 64 { // the first packet
		swaps = append(swaps, cas.Swap{Key: fmt.Sprintf("ns/%02d", i), Letters: []cas.Letter{{To: "two", Key: "ns/key"}}})
	}
	if _, err := r.Swap(r.Ctx, swaps); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("the first packet alone: %v", err)
	}
	if _, err := r.Swap(r.Ctx, append(swaps, cas.Swap{Key: "ns/last", Version: last.Version, Delete: true})); !store.OutcomeUnknown(err) {
		t.Errorf("with one that is refused after the answer, as COMMIT may be: %v", err)
	}
}

// Letters outlive a restart of the server, and an outage of the reader.
func TestLettersOfAnOutage(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	link := process.NewLink(t, shared.Address)
	writer := s.ready("writer")
	s.url = s.At(link.Address)
	reader := s.ready("one")
	writer.Write("one", 1)
	reader.Reads(1)
	link.Cut()
	writer.Write("one", 2)
	writer.Write("one", 3)
	link.Mend()
	reader.Reads(2)
	reader.Reads(3)
	await.Silent(t, reader.Lost, "loss")
}

// An instance without leases sends nothing. With a lease it begins a sleep now and then, and more often while somebody waits. If it cannot
// sleep, it looks into its mailbox.
//
// The server counts statements by their kind (Com_…). "Questions" would also count the end of each idle connection, of which an instance
// has several. So the bound of an idle instance is 0. A sleep is one statement, and a look into the mailbox has six, and a seventh during a sleep.
// Proves: promise 6
func TestIdleSendsNothing(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	db := s.Database.Open(t)
	db.SetMaxOpenConns(1)
	count := func() (all int) {
		rows, err := db.QueryContext(t.Context(), `SHOW GLOBAL STATUS LIKE 'Com\_%'`)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var name string
			var n int
			if err := rows.Scan(&name, &n); err != nil {
				t.Fatal(err)
			}
			all += n
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		return all
	}
	const nap, look = 2 * time.Second, 7
	var early atomic.Int64 // looks that came before the sleep had begun, so they were repeated
	sleeper := s.hooked("sleeps", nap, nil, func(asleep bool) {
		if !asleep {
			early.Add(1)
		}
	})
	s.session().exec("DO GET_LOCK('" + sleeper.Bed("polls") + "', 0)")
	poller := s.start("polls")
	poller.polls("has the lock")
	// become brings one instance into a state. The other one is idle: it would send statements, too.
	become := func(r *rig, waits, keeps, leases bool, want string) {
		for _, one := range []*rig{sleeper, poller} {
			one.Expect(waits && one == r, keeps && one == r, leases && one == r)
		}
		for _, one := range []*rig{sleeper, poller} {
			await.Until(t, "the states are reached", func() bool {
				state, _ := one.Way()
				return state == want && one == r || state == "off" && one != r
			})
		}
	}
	for _, is := range []struct {
		what                 string
		r                    *rig
		waits, keeps, leases bool
		state                string
		least, most          int
	}{
		{"a poller, idle", poller, false, false, false, "off", 0, 0},
		{"a poller with a lease", poller, false, false, true, "polling", 4, 100},           // three looks, and a try to sleep
		{"a poller that wants to keep keys", poller, false, true, true, "polling", 4, 100}, // so it keeps none
		{"a poller while somebody waits", poller, true, false, true, "polling", 200, 1200}, // 50 looks/s, some more in the beginning, and a try to sleep
		{"idle", sleeper, false, false, false, "off", 0, 0},
		{"asleep with a lease", sleeper, false, false, true, "listening", 0, 2 * (1 + look)},        // at most two sleeps of 2s begin in 3s
		{"asleep while keys are kept", sleeper, false, true, true, "listening", 5, 2 * (1 + look)},  // and at least one
		{"asleep while somebody waits", sleeper, true, false, true, "listening", 5, 2 * (1 + look)}, // the same
	} {
		become(is.r, is.waits, is.keeps, is.leases, is.state)
		if is.keeps {
			await.Until(t, is.what+": the sleeper alone hears recalls", func() bool { return is.r.Hears() == (is.r == sleeper) })
		}
		for tries := 1; ; tries++ {
			before, earlier := count(), early.Load()
			time.Sleep(3 * time.Second) // the measure is a time
			n := count() - before - 1   // this one
			most := is.most + look*int(early.Load()-earlier)
			if n >= is.least && n <= most {
				break
			}
			// A machine may have been busy for a moment, and a look that came early may have been noted before the measure, and counted in it. What
			// sends too much, or too little, does so each time.
			if tries == 3 {
				t.Errorf("%s: %d statements in 3s, want %d to %d", is.what, n, is.least, most)
				break
			}
		}
	}
}

// Calls that wait come and go faster than looks into the mailbox follow each other. That puts no look off.
// Proves: promise 5
func TestChangesOfWhoWaitsPutNoLookOff(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r, other := s.ready("one"), s.ready("other")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for waits := false; ; waits = !waits {
			select {
			case <-stop:
				return
			default:
				r.Expect(waits, false, true)
				runtime.Gosched()
			}
		}
	}()
	began := time.Now()
	for i := range byte(5) {
		other.Write("one", i)
		r.Reads(i)
	}
	if took := time.Since(began); took > 12*time.Second { // 0.1 s; half a minute if each change puts the look off
		t.Errorf("five letters came in %s", took)
	}
	close(stop)
	<-stopped
}

// One dead lease among those of many swaps costs some packets more, not one for each swap. In the quiet time none is tried again.
func TestADeadLeaseAmongManyCostsFewPackets(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	r := s.ready("one")
	r.Expect(false, false, false)
	db := s.Database.Open(t)
	db.SetMaxOpenConns(1)
	count := func() (n int) {
		var name string
		r.Must(db.QueryRowContext(r.Ctx, "SHOW GLOBAL STATUS LIKE 'Com_rollback'").Scan(&name, &n))
		return n
	}
	const many = 64
	for round, most := range []int{20, 5} {
		var swaps []cas.Swap
		for i := range many {
			lease := r.OpenLease(time.Minute)
			swaps = append(swaps, cas.Swap{Key: fmt.Sprintf("ns/%d/%d", round, i), Tokens: 1, Living: []store.LeaseID{lease}})
		}
		want := many - 1
		if round == 0 {
			r.Must(r.Revoke(r.Ctx, swaps[20].Living))
		} else {
			_, err := db.ExecContext(r.Ctx, "UPDATE locksidecar_meta SET quiet_until = 9000000000000000")
			want = 0
			r.Must(err)
			_, err = db.ExecContext(r.Ctx, "COMMIT")
			r.Must(err)
		}
		before := count()
		results, err := r.Swap(r.Ctx, swaps)
		r.Must(err)
		if n := count() - before; n > most {
			t.Errorf("round %d: %d packets, want %d at most", round, n, most)
		}
		done := 0
		for _, result := range results {
			if result.Done {
				done++
			} else if (result.Quiet > 0) != (round == 1) {
				t.Errorf("round %d: %+v", round, result)
			}
		}
		if done != want {
			t.Errorf("round %d: %d of %d swaps were carried out, want %d", round, done, many, want)
		}
	}
}

// Old letters and expired leases are deleted in parts. Others stay.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	operator := s.session()
	operator.exec("INSERT INTO locksidecar_letters (mailbox, name, base, body, sent_at) WITH RECURSIVE n AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < 1000) SELECT 'gone', 'k', 1, '', seq FROM n")
	operator.exec("INSERT INTO locksidecar_leases (id, instance, ttl, expires_at) WITH RECURSIVE n AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < 700) SELECT UNHEX(LPAD(HEX(seq), 32, '0')), '', 1, seq FROM n")
	r.Write("gone", 1)
	r.Must(r.SweepOnce(r.Ctx))
	count := func(table string) (n int) {
		t.Helper()
		r.Must(operator.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM "+table).Scan(&n))
		return n
	}
	if n := count("locksidecar_letters"); n != 1 {
		t.Errorf("%d letters are left, want the new one", n)
	}
	if n := count("locksidecar_leases"); n != 1 || !r.Keeps(lease) {
		t.Errorf("%d leases are left, want the living one", n)
	}
}
