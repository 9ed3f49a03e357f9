package mysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// session is a connection of somebody else, such as an operator, in the same database.
type session struct {
	*sql.Conn
	t *testing.T
}

func (s *server) session() *session {
	s.t.Helper()
	conn, err := s.Database.Open(s.t).Conn(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return &session{conn, s.t}
}

// asUser is a session of another user. It ends with the test, if not before.
func (s *server) asUser(user string) *session {
	s.t.Helper()
	conn, err := s.connect(user)
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

func (s *server) connect(user string) (*session, error) {
	db, err := sql.Open("mysql", fmt.Sprintf("%[1]s:%[1]s@tcp(%[2]s)/%[3]s", user, s.Server.Address, s.Name))
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { _ = db.Close() })
	db.SetMaxIdleConns(-1) // an ended session leaves none
	conn, err := db.Conn(context.Background())
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return &session{conn, s.t}, nil
}

// id is the number of the session.
func (s *session) id() (n int64) {
	s.t.Helper()
	if err := s.QueryRowContext(context.Background(), "SELECT CONNECTION_ID()").Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// free checks that nobody has a lock.
func (s *session) free(lock string) {
	s.t.Helper()
	var used sql.NullInt64
	if err := s.QueryRowContext(context.Background(), "SELECT IS_USED_LOCK(?)", lock).Scan(&used); err != nil || used.Valid {
		s.t.Errorf("session %d has the lock %s: %v", used.Int64, lock, err)
	}
}

func (s *session) exec(statement string, args ...any) {
	s.t.Helper()
	if _, err := s.ExecContext(context.Background(), statement, args...); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
}

// awaitLockWait returns when a statement in the database waits for a row.
func (s *session) awaitLockWait() {
	s.t.Helper()
	await.Until(s.t, "a statement waits for a row", func() bool {
		s.exec("DO SLEEP(0.15)") // the view is made anew only if nobody has read it for 0.1 s
		var n int
		err := s.QueryRowContext(context.Background(), `SELECT COUNT(*) FROM information_schema.innodb_trx t
			JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()`).Scan(&n)
		if err != nil {
			s.t.Fatal(err)
		}
		return n > 0
	})
}

// An open transaction of somebody else stalls only the keys whose rows it has locked, also beside others in one call.
func TestALockedRowStallsOnlyItsKey(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	held := r.Done(cas.Swap{Key: "ns/locked", Data: []byte("before")})
	free := r.Done(cas.Swap{Key: "ns/free", Data: []byte("before")})
	operator, watcher := s.session(), s.session()
	operator.exec("BEGIN")
	operator.exec("UPDATE locksidecar_locks SET data = 'x' WHERE name = 'ns/locked'")

	began := time.Now()
	results, err := r.Swap(r.Ctx, []cas.Swap{
		{Key: "ns/free", Version: free.Version, Data: []byte("after")},
		{Key: "ns/locked", Version: held.Version, Data: []byte("after")},
		{Key: "ns/new", Data: []byte("after")},
	})
	r.Must(err)
	if !results[0].Done || results[1].Done || !results[1].Later || !results[2].Done {
		t.Errorf("beside a locked row: %+v", results)
	}
	if p := results[1].Record; p.Version != held.Version || string(p.Data) != "before" {
		t.Errorf("the record of the locked row: %+v", p)
	}
	t.Logf("with others: %s", time.Since(began).Round(time.Millisecond))
	if result, err := r.SwapOne(cas.Swap{Key: "ns/locked", Version: held.Version, Data: []byte("after")}); err != nil || !result.Later {
		t.Errorf("alone: %+v, %v", result, err)
	}
	if got := r.LoadOne("ns/locked"); string(got.Data) != "before" {
		t.Errorf("a read: %+v", got)
	}
	// While it waits, others get connections.
	waiting := make(chan cas.Swapped, 1)
	go func() {
		result, err := r.SwapOne(cas.Swap{Key: "ns/locked", Version: held.Version, Data: []byte("after")})
		if err != nil {
			t.Error(err)
		}
		waiting <- result
	}()
	for i := range 5 {
		r.Done(cas.Swap{Key: fmt.Sprint("ns/other", i), Data: []byte("x")})
	}
	var n int
	r.Must(watcher.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%6e732f6c6f636b6564%'").Scan(&n))
	if n != 0 {
		t.Errorf("%d statements wait for the row", n)
	}
	operator.exec("ROLLBACK")
	if result := await.Receive(t, waiting, "the swap's answer"); !result.Done && !result.Later {
		t.Errorf("after the end of the other transaction: %+v", result)
	}
	if r.LoadOne("ns/locked").Version == held.Version {
		r.Done(cas.Swap{Key: "ns/locked", Version: held.Version, Data: []byte("after")})
	}
}

// A record that somebody else has made, and not committed, is locked, and no read shows it. It stalls only its key, too.
func TestARowThatIsNotCommittedStallsOnlyItsKey(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	held := r.Done(cas.Swap{Key: "ns/held", Data: []byte("before")})
	operator := s.session()
	operator.exec("BEGIN")
	operator.exec("INSERT INTO locksidecar_locks VALUES ('ns/new', 5, 1, 7, '', 'x')")
	ctx, cancel := context.WithTimeout(r.Ctx, 10*time.Second) // the store's own limit is 5 s
	defer cancel()
	began := time.Now()
	results, err := r.Swap(ctx, []cas.Swap{
		{Key: "ns/held", Version: held.Version, Data: []byte("after")},
		{Key: "ns/a", Data: []byte("after")},
		{Key: "ns/new", Data: []byte("after")},
		{Key: "ns/z", Data: []byte("after")},
	})
	r.Must(err)
	for i, result := range results {
		if is := i == 2; result.Done == is || result.Later != is {
			t.Errorf("swap %d: %+v", i, result)
		}
	}
	t.Logf("after %s", time.Since(began).Round(time.Millisecond))
	operator.exec("ROLLBACK")
	r.Done(cas.Swap{Key: "ns/new", Data: []byte("after")})
}

// A swap that waits for the row of a lease is judged by the time after the wait, and by what became of the lease.
// Proves: A8
func TestSwapThatWaitedForALease(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*session, store.LeaseID){
		"the lease is revoked": func(s *session, id store.LeaseID) {
			s.exec("DELETE FROM locksidecar_leases WHERE id = ?", id[:])
		},
		"the lease expires": func(s *session, id store.LeaseID) {
			s.exec("UPDATE locksidecar_leases SET expires_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 300000 WHERE id = ?", id[:])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := on(t, shared)
			r := s.ready("one")
			lease := r.OpenLease(time.Minute)
			other, watcher := s.session(), s.session()
			other.exec("BEGIN")
			meanwhile(other, lease)
			swapped := make(chan cas.Swapped, 1)
			go func() {
				result, err := r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}})
				if err != nil {
					t.Error(err)
				}
				swapped <- result
			}()
			watcher.awaitLockWait()
			other.exec("DO SLEEP(0.4)") // by the server's clock
			await.Silent(t, swapped, "answer")
			other.exec("COMMIT")
			if result := await.Receive(t, swapped, "the swap's answer"); result.Done {
				t.Errorf("carried out with a dead lease: %+v", result)
			}
		})
	}
}

// A Revoke ends after the swaps that rely on the lease, so that whoever looks afterwards sees them.
func TestRevokeWaitsForSwaps(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	swapping, watcher := s.session(), s.session()
	swapping.exec("BEGIN")
	swapping.exec("DO (SELECT COUNT(*) FROM (SELECT id FROM locksidecar_leases WHERE id = ? LOCK IN SHARE MODE) l)", lease[:])
	revoked := make(chan error, 1)
	go func() { revoked <- r.Revoke(r.Ctx, []store.LeaseID{lease}) }()
	watcher.awaitLockWait()
	await.Silent(t, revoked, "end of the Revoke")
	swapping.exec("COMMIT")
	r.Must(await.Receive(t, revoked, "the end of the Revoke"))
}

// A renewal locks the rows of its leases in the order of their ids, as swaps do, so the two never wait for each other. InnoDB keeps the lock of a
// row that does not fulfil the condition of a statement if the statement has waited for it.
// Proves: A8
func TestRenewalLocksInTheOrderOfIDs(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	leases := []store.LeaseID{r.OpenLease(time.Minute), r.OpenLease(time.Minute)}
	slices.SortFunc(leases, func(a, b store.LeaseID) int { return bytes.Compare(a[:], b[:]) })
	swapping, other, watcher := s.session(), s.session(), s.session()
	swapping.exec("BEGIN")
	swapping.exec("DO (SELECT COUNT(*) FROM (SELECT id FROM locksidecar_leases WHERE id = ? LOCK IN SHARE MODE) l)", leases[1][:])
	renewed := make(chan error, 1)
	go func() {
		_, _, err := r.Renew(r.Ctx, leases)
		renewed <- err
	}()
	watcher.awaitLockWait()
	var id []byte
	if err := other.QueryRowContext(r.Ctx, "SELECT id FROM locksidecar_leases WHERE id = ? FOR UPDATE NOWAIT", leases[0][:]).Scan(&id); err == nil {
		t.Error("the renewal waits for the second lease, and has not locked the first one")
	}
	swapping.exec("COMMIT")
	r.Must(await.Receive(t, renewed, "the end of the renewal"))
}

// A swap keeps the row of its lease until its end, so a Revoke cannot come between.
// Proves: A8
func TestSwapKeepsItsLease(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	held := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	operator, watcher := s.session(), s.session()
	// The letter's row cannot be made meanwhile, so the swap stops between its conditions and its commit.
	operator.exec("LOCK TABLES locksidecar_letters WRITE")
	swapped, revoked := make(chan cas.Swapped, 1), make(chan error, 1)
	go func() {
		result, err := r.SwapOne(cas.Swap{
			Key: "ns/key", Version: held.Version, Data: []byte("y"), Living: []store.LeaseID{lease},
			Letters: []cas.Letter{{To: "two", Key: "ns/key", Body: []byte("x")}},
		})
		if err != nil {
			t.Error(err)
		}
		swapped <- result
	}()
	await.Until(t, "the swap waits for the table", func() bool {
		var n int
		r.Must(watcher.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE '%table metadata lock%' AND info LIKE 'INSERT%'").Scan(&n))
		return n > 0
	})
	go func() { revoked <- r.Revoke(r.Ctx, []store.LeaseID{lease}) }()
	watcher.awaitLockWait()
	await.Silent(t, revoked, "end of the Revoke")
	operator.exec("UNLOCK TABLES")
	if result := await.Receive(t, swapped, "the swap's answer"); !result.Done {
		t.Errorf("the swap: %+v", result)
	}
	r.Must(await.Receive(t, revoked, "the end of the Revoke"))
}

// A lease that was seen dead stays dead, also if the server's clock is set back.
// Proves: A8
func TestDeathIsFinalIfTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	operator := s.session()
	operator.exec("UPDATE locksidecar_leases SET expires_at = 1")
	_, states, err := r.Load(r.Ctx, nil, []store.LeaseID{lease})
	if r.Must(err); states[0].Alive {
		t.Fatal("an expired lease lives")
	}
	operator.exec("UPDATE locksidecar_leases SET expires_at = 9000000000000000") // what a clock in the past sees
	if r.Keeps(lease) {
		t.Error("a dead lease was renewed")
	}
	if _, states, err = r.Load(r.Ctx, nil, []store.LeaseID{lease}); err != nil || states[0].Alive {
		t.Errorf("a dead lease lives: %v", err)
	}
}

// Tokens grow for a record that is ahead of the clock, also through its deletion.
// Proves: A8
func TestTokensGrowIfTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 40})
	operator := s.session()
	operator.exec("UPDATE locksidecar_locks SET version = version + 3600000000") // written an hour from now
	last := r.LoadOne("ns/key")
	next := r.Done(cas.Swap{Key: "ns/key", Version: last.Version, Data: []byte("y"), Tokens: cas.TokensPerSwap})
	if next.Base != last.Base+40 {
		t.Errorf("tokens from %d, after those from %d", next.Base, last.Base)
	}
	r.Done(cas.Swap{Key: "ns/key", Version: next.Version, Delete: true})
	if again := r.Done(cas.Swap{Key: "ns/key", Data: []byte("z")}); again.Base < next.Base+cas.TokensPerSwap {
		t.Errorf("after the deletion tokens from %d, after those from %d", again.Base, next.Base)
	}
}

// Versions are compared exactly, also where a floating-point number has no room for all digits.
func TestVersionsAreComparedExactly(t *testing.T) {
	t.Parallel()
	const version = 1<<60 + 1
	s := on(t, shared)
	r := s.ready("one")
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("old")})
	operator := s.session()
	operator.exec("UPDATE locksidecar_locks SET version = ?", int64(version))
	for _, wrong := range []int64{version - 1, version + 1} {
		got, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: wrong, Data: []byte("new")})
		if r.Must(err); got.Done || got.Record.Version != version {
			t.Errorf("expected %d: %+v", wrong, got)
		}
	}
	r.Done(cas.Swap{Key: "ns/key", Version: version, Data: []byte("new")})
}

// New records of one packet keep all their leases, also if these need more than 65,535 bytes. MariaDB forgets more than that of a
// hexadecimal literal in a UNION.
func TestNewRecordsKeepManyLeases(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	swaps := []cas.Swap{{Key: "ns/one"}, {Key: "ns/two"}}
	for range 5000 {
		swaps[1].Leases = append(swaps[1].Leases, uuid.New())
	}
	results, err := r.Swap(r.Ctx, swaps)
	if r.Must(err); !results[0].Done || !results[1].Done {
		t.Fatal("they were not made")
	}
	if got := r.LoadOne("ns/two"); !slices.Equal(got.Leases, swaps[1].Leases) {
		t.Errorf("a record of %d leases has %d when it is read", len(swaps[1].Leases), len(got.Leases))
	}
}

// Packets that make the same records at the same time deadlock or not, but each record is made once, and no call fails.
func TestPacketsThatMakeTheSameRecords(t *testing.T) {
	t.Parallel()
	const askers, rounds, keys = 6, 15, 12
	orders := []int{1, 5, 7, 11} // each visits all keys
	s := on(t, shared)
	var all []*rig
	for i := range askers {
		all = append(all, s.ready(fmt.Sprint("asker", i)))
	}
	for round := range rounds {
		var made [keys]atomic.Int64
		var working sync.WaitGroup
		for i, r := range all {
			working.Go(func() {
				var swaps []cas.Swap
				for k := range keys {
					k = (k*orders[i%4] + i) % keys
					swaps = append(swaps, cas.Swap{Key: fmt.Sprintf("ns/%d/%d", round, k), Data: []byte("x")})
				}
				results, err := r.Swap(r.Ctx, swaps)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				var deletions []cas.Swap
				for n, result := range results {
					if result.Done {
						made[(n*orders[i%4]+i)%keys].Add(1)
						deletions = append(deletions, cas.Swap{Key: swaps[n].Key + "/later", Data: []byte("x")})
					}
				}
				if _, err := r.Swap(r.Ctx, deletions); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		working.Wait()
		for k := range made {
			if n := made[k].Load(); n != 1 {
				t.Fatalf("round %d: record %d was made %d times", round, k, n)
			}
		}
	}
}

// A transaction that the server rolled back because of a deadlock is repeated.
func TestDeadlocksAreRepeated(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	held := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	other, watcher := s.session(), s.session()
	other.exec("SET innodb_lock_wait_timeout = 20")
	deadlock := func() cas.Swapped {
		other.exec("BEGIN")
		for range 50 { // a heavy transaction is not the one that is rolled back
			id := uuid.New()
			other.exec("INSERT INTO locksidecar_leases VALUES (?, '', 1, 1)", id[:])
		}
		other.exec("UPDATE locksidecar_leases SET ttl = ttl + 1 WHERE id = ?", lease[:])
		swapped := make(chan cas.Swapped, 1)
		go func() {
			result, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: held.Version, Data: []byte("y"), Living: []store.LeaseID{lease}})
			if err != nil {
				t.Error(err)
			}
			swapped <- result
		}()
		watcher.awaitLockWait()                                                            // it has the record, and waits for the lease
		other.exec("UPDATE locksidecar_locks SET swap_id = swap_id WHERE name = 'ns/key'") // the other way round
		other.exec("COMMIT")
		return await.Receive(t, swapped, "the swap's answer")
	}
	var result cas.Swapped
	await.Until(t, "a deadlock: on a slow machine, the swap may have waited for too long before it", func() bool {
		result = deadlock()
		return !result.Later
	})
	if !result.Done {
		t.Errorf("after a deadlock: %+v", result)
	}
}

// A letter whose row is committed after one with a greater id is delivered, too.
func TestLettersOfSlowTransactions(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	slow := s.session()
	letter := "INSERT INTO locksidecar_letters (mailbox, name, base, body, sent_at) VALUES ('one', 'k', 1, ?, 9000000000000000)"
	slow.exec("BEGIN")
	slow.exec(letter, []byte{1})
	s.session().exec(letter, []byte{2})
	r.Reads(2)
	slow.exec("COMMIT")
	r.Reads(1)
}

// A swap of a key that does not exist locks no gap of the index, so that of another such key does not wait for it, whatever the
// server's default isolation is.
// Proves: A8
func TestSwapsOfAbsentKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	operator, watcher := s.session(), s.session()
	operator.exec("LOCK TABLES locksidecar_letters WRITE") // the first swap stops before its commit
	swapped := make(chan cas.Swapped, 1)
	go func() {
		result, err := r.SwapOne(cas.Swap{Key: "ns/one", Data: []byte("x"), Letters: []cas.Letter{{To: "two", Key: "ns/one", Body: []byte("x")}}})
		if err != nil {
			t.Error(err)
		}
		swapped <- result
	}()
	await.Until(t, "the swap waits for the table", func() bool {
		var n int
		r.Must(watcher.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE '%table metadata lock%' AND info LIKE 'INSERT%'").Scan(&n))
		return n > 0
	})
	for _, key := range []string{"ns/a", "ns/two"} {
		if result, err := r.SwapOne(cas.Swap{Key: key, Data: []byte("x")}); err != nil || !result.Done {
			t.Errorf("%s: %+v, %v", key, result, err)
		}
	}
	operator.exec("UNLOCK TABLES")
	if result := await.Receive(t, swapped, "the swap's answer"); !result.Done {
		t.Errorf("the first swap: %+v", result)
	}
}
