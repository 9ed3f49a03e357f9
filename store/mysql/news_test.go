package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
)

// always is longer than a test: whoever sleeps for so long is woken, or gets nothing.
const always = time.Hour

// sleeping starts an instance that sleeps for so long at a time, and waits until it listens.
func (s *server) sleeping(instance string, nap time.Duration) *rig {
	s.t.Helper()
	r := s.hooked(instance, nap, nil, nil)
	r.listens()
	return r
}

func (s *server) hooked(instance string, nap time.Duration, beforeSleep func(context.Context), afterLook func(bool)) *rig {
	s.t.Helper()
	b := s.open(instance)
	b.Sleeps(nap, nap, beforeSleep, afterLook)
	return &rig{b.Backend, castest.Start(s.t, b)}
}

func (r *rig) listens() {
	r.T.Helper()
	await.Until(r.T, "it can be woken", func() bool {
		state, _ := r.Way()
		return state == "listening" && r.Hears()
	})
}

func (r *rig) polls(why string) {
	r.T.Helper()
	await.Until(r.T, "it polls: "+why, func() bool {
		state, is := r.Way()
		return state == "polling" && strings.Contains(is, why) && r.Hears()
	})
}

// number is that of the session in which an instance sleeps, or 0.
func (s *session) number(bed string) (n int64) {
	s.t.Helper()
	if err := s.QueryRowContext(context.Background(), "SELECT COALESCE(IS_USED_LOCK(?), 0)", bed).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// as is a session of the sidecars' own user.
func (s *server) as() *session {
	s.t.Helper()
	return s.asUser(s.Name)
}

// A letter ends the sleep of its reader, whoever has written it, and however many there are. Nobody looks otherwise.
// Proves: promise 6
func TestALetterWakesItsReader(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r, a, b := s.sleeping("one", always), s.sleeping("a", always), s.ready("b")
	for i := range byte(50) {
		a.Write("one", i)
		r.Reads(i)
		b.Write("one", i)
		r.Reads(i)
		r.Must(b.Post(r.Ctx, []cas.Letter{{To: "a", Key: "k", Body: []byte{i}}, {To: "one", Key: "k", Body: []byte{i}}}))
		a.Reads(i)
		r.Reads(i)
	}
	for _, one := range []*rig{r, a} {
		if state, why := one.Way(); state != "listening" {
			t.Errorf("now it is %s: %s", state, why)
		}
	}
	if how := r.Details()["news"]; !strings.HasPrefix(how, "pushed") {
		t.Errorf("it says that news are %q", how)
	}
}

// A letter that is committed after a look, and before the sleep has begun, wakes nobody. So there is one more look.
// Proves: promise 6
func TestALetterBetweenALookAndASleep(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer, operator := s.ready("writer"), s.session()
	const free, armed, held = 0, 1, 2 // the next sleep is held back; it is, and so is the next look
	var state atomic.Int32
	sleeps, mayLook := make(chan chan struct{}), make(chan struct{})
	looked := make(chan bool, 1)
	r := s.hooked("one", always, func(context.Context) {
		if state.CompareAndSwap(armed, held) {
			may := make(chan struct{})
			sleeps <- may
			<-may
		}
	}, func(asleep bool) {
		if state.CompareAndSwap(held, free) {
			looked <- asleep
			<-mayLook
		}
	})
	sleeping := func() {
		t.Helper()
		await.Until(t, "the sleep has begun", func() bool {
			var n int
			r.Must(operator.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND info LIKE '%GET_LOCK%'", operator.number(r.Bed("one"))).Scan(&n))
			return n == 1
		})
	}
	r.listens()
	for i := range byte(3) {
		sleeping() // a wake before that would be for nobody
		state.Store(armed)
		r.Must(writer.WakeOne(r.Ctx, "one"))
		may := await.Receive(t, sleeps, "the next sleep")
		if await.Receive(t, looked, "the look") {
			t.Fatal("the sleep that was not sent has begun")
		}
		writer.Write("one", i)
		r.Must(writer.WakeOne(r.Ctx, "one"))
		close(may)
		sleeping()
		mayLook <- struct{}{}
		r.Reads(i)
		r.listens()
	}
}

// A sleep that was sent may never begin. The instance does not look for that for long: it polls.
// Proves: rule cost
func TestASleepThatNeverBegins(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer := s.ready("writer")
	var hangs atomic.Bool
	var looks atomic.Int64
	r := s.hooked("one", always, func(ctx context.Context) {
		if hangs.Load() {
			<-ctx.Done()
		}
	}, func(bool) { looks.Add(1) })
	r.listens()
	hangs.Store(true)
	before := looks.Load()
	await.Until(t, "it polls", func() bool {
		r.Must(writer.WakeOne(r.Ctx, "one"))
		state, why := r.Way()
		return state == "polling" && strings.Contains(why, "does not let this sidecar sleep")
	})
	// Eight looks, and then one each 20 ms for a second; and those of the sleeps before.
	if n := looks.Load() - before; n > 150 {
		t.Errorf("%d looks for a sleep that did not begin", n)
	}
	writer.Write("one", 1)
	r.Reads(1)
	hangs.Store(false)
	r.listens()
}

// A letter that was written after a sleep had ended by itself woke nobody, and it was not missed, even if the next look came late.
// Proves: promise 6
func TestALetterAfterASleepIsNotMissed(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer, operator := s.ready("writer"), s.session()
	const armed, held, late = 1, 2, 3 // the next sleep is held back; it is; and so is the next look
	var state, begun atomic.Int32
	maySleep, mayLook, looked := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	r := s.hooked("one", time.Second, func(context.Context) {
		if state.CompareAndSwap(armed, held) {
			<-maySleep
		}
	}, func(asleep bool) {
		if asleep && begun.Add(1) == 2 { // the instance woke itself from the first one
			state.Store(armed)
		}
		if state.CompareAndSwap(held, late) {
			looked <- struct{}{}
			<-mayLook
		}
	})
	await.Receive(t, looked, "a look after the second sleep")
	writer.Write("one", 1)
	operator.exec("DO SLEEP(0.4)") // by the server's clock: the letter's age
	before := begun.Load()
	close(maySleep)
	close(mayLook)
	r.Reads(1)
	await.Until(t, "it sleeps again, and does not poll for a minute", func() bool { return begun.Load() >= before+2 })
}

// Many writers at a time: each letter comes once.
func TestManyLettersAtOnce(t *testing.T) {
	t.Parallel()
	const writers, each = 6, 120
	s := on(t, shared)
	r := s.sleeping("one", always)
	var writing sync.WaitGroup
	for i := range writers {
		w := s.ready(fmt.Sprint("writer", i))
		writing.Go(func() {
			for n := range each {
				key := fmt.Sprintf("ns/%d/%d", i, n)
				if _, err := w.SwapOne(cas.Swap{Key: key, Letters: []cas.Letter{{To: "one", Key: key}}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	came := map[string]int{}
	for range writers * each {
		came[await.Receive(t, r.Letters, "a letter").Key]++
	}
	writing.Wait()
	for key, n := range came {
		if n != 1 {
			t.Errorf("the letter of %s came %d times", key, n)
		}
	}
	await.Silent(t, r.Letters, "letter")
	await.Silent(t, r.Lost, "loss")
	if state, why := r.Way(); state != "listening" {
		t.Errorf("now it is %s: %s", state, why)
	}
}

// KILL QUERY ends only the statement of a session that has the reader's lock. After a restart of the server, its number is that of somebody else.
// Proves: trap number of a session
func TestANumberThatIsUsedAgain(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	link := process.NewLink(t, m.Address)
	writer := s.ready("writer")
	for range 60 { // the sidecars' own connections do not reach its number after the restart
		_ = s.as().Close()
	}
	direct := s.url
	s.url = s.At(link.Address)
	r := s.sleeping("one", always)
	number := s.session().number(r.Bed("one"))
	r.Must(writer.WakeOne(r.Ctx, "one"))
	r.listens()
	link.Cut()
	s.url = direct
	var app *session
	await.Until(t, "an app has the sleeper's number", func() bool { // and not the writer, which connects again
		m.Restart(t)
		app = s.as()
		for app.id() < number {
			app = s.as()
		}
		return app.id() == number
	})
	slept := make(chan error, 1)
	go func() {
		var n int
		err := app.QueryRowContext(r.Ctx, "SELECT SLEEP(2)").Scan(&n)
		if n != 0 {
			err = errors.Join(err, errors.New("it was interrupted"))
		}
		slept <- err
	}()
	await.Until(t, "the writer works again", func() bool { return writer.Ready() == nil })
	for i := range byte(20) {
		writer.Write("one", i)
		r.Must(writer.WakeOne(r.Ctx, "one"))
	}
	r.Must(await.Receive(t, slept, "the end of the app's statement"))
	link.Mend()
	for i := range byte(20) {
		r.Reads(i)
	}
	r.listens()
}

// While sidecars come, go, and wake each other all the time, no statement of an app with the same user is interrupted.
// Proves: trap number of a session
func TestWakesInterruptNobodyElse(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer := s.sleeping("writer", always)
	var stop atomic.Bool
	var working sync.WaitGroup
	for range 3 { // sessions of an app come and go, too
		working.Go(func() {
			for !stop.Load() {
				app := s.as()
				for range 20 {
					var n int
					if err := app.QueryRowContext(writer.Ctx, "SELECT SLEEP(0.002)").Scan(&n); err != nil || n != 0 {
						t.Errorf("an app's statement: %d, %v", n, err)
					}
				}
				_ = app.Close()
			}
		})
	}
	working.Go(func() {
		for i := 0; !stop.Load(); i++ {
			key := fmt.Sprintf("ns/%d", i)
			if _, err := writer.SwapOne(cas.Swap{Key: key, Letters: []cas.Letter{{To: "one", Key: key}}}); err != nil {
				t.Error(err)
			}
		}
	})
	for range 15 {
		b := s.open("one")
		b.Sleeps(always, always, nil, nil)
		r := castest.Start(t, b)
		for range 10 {
			await.Receive(t, r.Letters, "a letter")
		}
		b.Stop()
	}
	stop.Store(true)
	working.Wait()
}

// A packet that somebody's KILL QUERY has hit before its COMMIT is repeated.
func TestAKilledPacketIsRepeated(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	held := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	other, watcher := s.session(), s.session()
	other.exec("BEGIN")
	other.exec("UPDATE locksidecar_leases SET ttl = ttl + 1")
	swapped := make(chan error, 1)
	go func() {
		result, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: held.Version, Data: []byte("y"), Living: []store.LeaseID{lease}})
		if err == nil && !result.Done {
			err = fmt.Errorf("not carried out: %+v", result)
		}
		swapped <- err
	}()
	watcher.awaitLockWait()
	var id int64
	r.Must(watcher.QueryRowContext(r.Ctx, `SELECT t.trx_mysql_thread_id FROM information_schema.innodb_trx t
		JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()`).Scan(&id))
	watcher.exec(fmt.Sprintf("KILL QUERY %d", id))
	other.exec("COMMIT")
	r.Must(await.Receive(t, swapped, "the swap's answer"))
}

// A KILL QUERY by an administrator that hits a packet does no harm: what is said to be carried out is, and what is not is not.
// Proves: promise 9
func TestKilledPacketsAreRepeated(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r, operator := s.ready("one"), s.session()
	stop, stopped := make(chan struct{}), make(chan struct{})
	kills := 0
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			rows, err := operator.QueryContext(context.Background(), "SELECT id FROM information_schema.processlist WHERE user = ? AND command = 'Query'", s.Name)
			if err != nil {
				t.Error(err)
				return
			}
			var ids []int64
			for rows.Next() {
				var id int64
				_ = rows.Scan(&id)
				ids = append(ids, id)
			}
			_ = rows.Close()
			for _, id := range ids {
				_, err := operator.ExecContext(context.Background(), fmt.Sprintf("KILL QUERY %d", id))
				if err == nil {
					kills++
				}
			}
			if len(ids) > 0 {
				time.Sleep(time.Millisecond) // without a pause, an idle machine kills each repetition of a statement
			}
		}
	}()
	for i := range 300 {
		key := fmt.Sprint("ns/", i)
		result, err := r.SwapOne(cas.Swap{Key: key, Data: []byte("x"), Letters: []cas.Letter{{To: "two", Key: key}}})
		if store.OutcomeUnknown(err) {
			continue
		}
		var now cas.Record
		await.Until(t, "a read is not killed", func() bool {
			records, _, err := r.Load(r.Ctx, []string{key}, nil)
			if err == nil {
				now = records[0]
			}
			return err == nil
		})
		if done := err == nil && result.Done; done != (now.Version != 0) {
			t.Fatalf("swap %d was answered %+v, %v, and the record is %+v", i, result, err, now)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d statements were killed", kills)
	if kills < 50 {
		t.Errorf("only %d statements were killed", kills)
	}
}

// A sidecar with another user may not wake this one, which then finds the letter at the end of its sleep, and polls from then on. The other one's
// log says why.
// Proves: promise 6
func TestAnotherUserCannotWake(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.sleeping("one", time.Second)
	s.Server.Exec(t, fmt.Sprintf("CREATE USER other%[1]s IDENTIFIED BY 'other'; GRANT ALL ON %[1]s.* TO other%[1]s", s.Name))
	log := s.logged()
	s.url = strings.Replace(s.url, s.Name+":"+s.Name+"@", "other"+s.Name+":other@", 1)
	writer := s.ready("writer")
	for i := byte(0); ; i++ {
		writer.Write("one", i)
		r.Reads(i)
		if state, why := r.Way(); state == "polling" && strings.Contains(why, "did not wake") {
			break
		}
		if i == 100 {
			t.Fatal("it never noticed that nobody wakes it")
		}
	}
	for i := range byte(5) {
		writer.Write("one", i)
		r.Reads(i)
	}
	r.polls("did not wake")
	await.Until(t, "the writer says so", func() bool { return log.Has("another user of the database") })
}

// If an administrator ends the session in which an instance sleeps, or it is cut, letters come all the same, and soon it can be woken again.
func TestTheSleepersSessionEnds(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	link := process.NewLink(t, shared.Address)
	writer, operator := s.ready("writer"), s.session()
	s.url = s.At(link.Address)
	r := s.sleeping("one", always)
	for i, ends := range []func(){
		func() { operator.exec(fmt.Sprintf("KILL %d", operator.number(r.Bed("one")))) },
		func() { operator.exec(fmt.Sprintf("KILL QUERY %d", operator.number(r.Bed("one")))) },
		func() { // the server still keeps the old session, and its lock
			link.Cut()
			link.Mend()
		},
		func() { shared.KillUser(t, s.Name) }, // also the session that it waits for
	} {
		ends()
		writer.Write("one", byte(i))
		r.Reads(byte(i))
		r.listens()
		await.Until(t, "the writer works", func() bool { return writer.Ready() == nil })
		writer.Write("one", byte(i))
		r.Reads(byte(i))
	}
}

// The connection for the mailbox has the lock for which an instance waits. If it breaks, the instance is not woken for nothing all the time.
func TestTheConnectionForTheMailboxBreaks(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r, writer, operator := s.sleeping("one", always), s.ready("writer"), s.session()
	for i := range byte(3) {
		bed := operator.number(r.Bed("one"))
		before := operator.number(r.Door(bed))
		await.Until(t, "another session has the lock", func() bool {
			n := operator.number(r.Door(bed))
			if n == before { // a connection in use stays
				r.DropConnections()
			}
			return n != 0 && n != before && n != operator.number(r.Bed("one"))
		})
		if now := operator.number(r.Bed("one")); now != bed {
			t.Errorf("it sleeps in session %d, and before in %d", now, bed)
		}
		writer.Write("one", i)
		r.Reads(i)
		r.listens()
	}
}

// After a restart of the server, and after it hung, an instance can be woken again. Meanwhile it does not say that it hears.
func TestNewsAfterARestart(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	s.limit = time.Second
	writer := s.ready("writer")
	r := s.sleeping("one", time.Second)
	for i, fault := range []struct{ begins, ends func() }{
		{m.Kill, func() { m.Restart(t) }}, {m.Freeze, m.Thaw},
	} {
		fault.begins()
		await.Until(t, "it is deaf", func() bool { return !r.Hears() })
		fault.ends()
		await.Until(t, "the writer works", func() bool { return writer.Ready() == nil })
		await.Until(t, "a letter is written", func() bool {
			_, err := writer.SwapOne(cas.Swap{Key: fmt.Sprint("ns/", i, time.Now().UnixNano()), Letters: []cas.Letter{{To: "one", Key: "k", Body: []byte{byte(i)}}}})
			return err == nil
		})
		r.Reads(byte(i))
		r.listens()
	}
}

// The end of an instance ends its sleep on the server at once. The same if nobody needs letters any more.
func TestTheEndOfASleep(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	operator := s.session()
	const many = 10
	took := time.Duration(0)
	for range many {
		r := s.sleeping("one", always)
		began := time.Now()
		r.Stop()
		await.Until(t, "no session sleeps", func() bool { return operator.number(r.Bed("one")) == 0 })
		took += time.Since(began)
	}
	if took > many*time.Second/2 { // a millisecond each
		t.Errorf("%d sessions ended after %s", many, took)
	}
	short := s.sleeping("two", time.Second)
	short.Expect(false, false, false)
	await.Until(t, "no session sleeps", func() bool { return operator.number(short.Bed("two")) == 0 })
	await.Until(t, "it does not listen", func() bool {
		state, _ := short.Way()
		return state == "off" && !short.Hears()
	})
}

// A sleep keeps no old rows, no table and no backup waiting.
func TestASleepLocksNothing(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	r, operator := s.sleeping("one", always), s.session()
	var n int
	r.Must(operator.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?", operator.number(r.Bed("one"))).Scan(&n))
	if n != 0 {
		t.Error("the sleep is a transaction of InnoDB")
	}
	operator.exec("SET lock_wait_timeout = 10")
	operator.exec("ALTER TABLE locksidecar_letters ADD COLUMN more INT NULL")
	operator.exec("ALTER TABLE locksidecar_letters DROP COLUMN more")
	operator.exec("FLUSH TABLES WITH READ LOCK")
	operator.exec("UNLOCK TABLES")
	writer := s.ready("writer")
	writer.Write("one", 1)
	r.Reads(1)
}

// A session that this instance has left, and that the server still keeps, for instance because a network was cut, is ended.
// Proves: promise 6
func TestAnOldSessionOfTheInstance(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	unused := s.open("one")
	unused.Stop()
	s.as().exec("DO GET_LOCK('" + unused.Bed("one") + "', 0)")
	r, writer := s.sleeping("one", always), s.ready("writer")
	writer.Write("one", 1)
	r.Reads(1)
}

// Somebody else's session with the lock of an instance is left alone, and the instance polls.
func TestSomebodyElseHasTheLock(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	stranger := s.session() // the administrator
	unused := s.open("one")
	unused.Stop()
	bed := unused.Bed("one")
	stranger.exec("DO GET_LOCK('" + bed + "', 0)")
	r, writer := s.start("one"), s.ready("writer")
	r.polls("has the lock")
	for i := range byte(5) {
		writer.Write("one", i)
		r.Reads(i)
	}
	if how := r.Details()["news"]; !strings.HasPrefix(how, "polled: another session") {
		t.Errorf("it says that news are %q", how)
	}
	stranger.exec("DO RELEASE_LOCK('" + bed + "')") // it was not ended
	r.listens()
}

// Behind a pooler, an instance sleeps in nobody's session: it polls.
func TestBehindAPoolerNobodySleeps(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer := s.ready("writer")
	s.url = s.At(mysqltest.NewPooler(t, shared, spoiled).Address)
	r := s.start("one")
	r.polls("pooler")
	for i := range byte(5) {
		writer.Write("one", i)
		r.Reads(i)
	}
	s.session().free(r.Bed("one"))
}

// If the server has no room for one more connection, an instance polls with those that it has.
func TestNoRoomForASleeper(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	r, writer := s.start("one"), s.ready("writer")
	r.listens()
	r.Expect(false, false, false)
	r.Must(writer.WakeOne(r.Ctx, "one"))
	await.Until(t, "it does not listen", func() bool { state, _ := r.Way(); return state == "off" })
	writer.Done(cas.Swap{Key: "ns/warm", Data: []byte("x")})
	r.Done(cas.Swap{Key: "ns/warm2", Data: []byte("x")})
	m.Exec(t, "SET GLOBAL max_connections = 10")
	var others []*session
	for {
		conn, err := s.connect(s.Name)
		if err != nil {
			break
		}
		others = append(others, conn)
	}
	r.Expect(true, false, true)
	r.polls("1040")
	for i := range byte(3) {
		writer.Write("one", i)
		r.Reads(i)
	}
	for _, other := range others {
		_ = other.Close()
	}
	r.listens()
}

// An instance that sleeps for long is ready for recalls soon after somebody waits, or keys are kept.
func TestALongSleepEndsIfSomebodyWaits(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	b, operator := s.open("one").Backend, s.session()
	b.Sleeps(time.Second, always, nil, nil)
	b.Expect(false, false, true)
	r := &rig{b, castest.Start(t, b)}
	await.Until(t, "it sleeps for long", func() bool {
		var n int
		r.Must(operator.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%GET_LOCK%, 3600)%' AND id <> CONNECTION_ID()").Scan(&n))
		state, _ := r.Way()
		return n == 1 && state == "listening"
	})
	if r.Hears() {
		t.Error("it hears, although nobody waits")
	}
	r.Expect(false, true, true)
	r.listens()
}

// Wakes without a letter cost no more than polls.
// Proves: rule cost
func TestWakesForNothing(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	var looks atomic.Int64
	r := s.hooked("one", always, nil, func(bool) { looks.Add(1) })
	r.listens()
	writer := s.as()
	before, wakes := looks.Load(), 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); wakes++ {
		_, err := writer.ExecContext(r.Ctx, "KILL QUERY IS_USED_LOCK('"+r.Bed("one")+"')")
		if known := (*driver.MySQLError)(nil); errors.As(err, &known) && known.Number == 1094 {
			continue // it has left its session, and polls for a second
		}
		r.Must(err)
	}
	// 100 looks in 2 s; and some that came before the sleep had begun.
	if n := looks.Load() - before; n > 400 {
		t.Errorf("%d looks after %d wakes in 2s", n, wakes)
	}
	other := s.ready("writer")
	other.Write("one", 1)
	r.Reads(1)
}

// A server that refuses KILL QUERY is not asked again and again.
func TestAServerThatRefusesToWake(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	log := s.logged()
	r := s.sleeping("one", always)
	if !r.Wakes("two") {
		t.Error("a packet does not wake the reader of its letter")
	}
	if r.Woke(io.ErrUnexpectedEOF) || !r.Woke(nil) {
		t.Error("a broken connection may have taken the wake with it, and an answer has not")
	}
	r.Woke(&driver.MySQLError{Number: 1227, Message: "secret"})
	if !log.Has("refuses to wake") || log.Has("secret") {
		t.Errorf("the log:\n%s", log)
	}
	if r.Wakes("two") {
		t.Error("the next packet wakes")
	}
	// An administrator's KILL QUERY may have hit ours, and a broken connection may have had its answer. Then the reader is woken once more.
	for harmless, done := range map[uint16]bool{1094: true, 1095: true, 1317: false} {
		other := s.ready(fmt.Sprint("other", harmless))
		if other.Woke(&driver.MySQLError{Number: harmless}) != done {
			t.Errorf("error %d: the reader needs no other wake: %v", harmless, !done)
		}
		if other.listens(); !other.Wakes("two") {
			t.Errorf("after error %d, the next packet does not wake", harmless)
		}
	}
}

// TestABrokenWakeIsNotTheEndOfTheOthers: if a connection breaks, also again and again, all others are woken nevertheless, and so is the one whose wake
// may have been lost. A server that is not reached is not asked for each of them.
func TestABrokenWakeIsNotTheEndOfTheOthers(t *testing.T) {
	t.Parallel()
	names := map[string]struct{}{}
	for i := range 20 {
		names[fmt.Sprint(i)] = struct{}{}
	}
	nobody := &driver.MySQLError{Number: 1094} // nobody sleeps there
	for name, c := range map[string]struct {
		fails func(call int) error
		woken int
		calls int
	}{
		"nothing breaks":     {func(int) error { return nil }, 20, 20},
		"nobody sleeps":      {func(int) error { return nobody }, 20, 20},
		"one breaks":         {func(call int) error { return map[int]error{3: io.ErrUnexpectedEOF}[call] }, 20, 21},
		"each breaks once":   {func(call int) error { return map[int]error{0: io.ErrUnexpectedEOF}[call%2] }, 20, 40},
		"it is not reached":  {func(int) error { return io.ErrUnexpectedEOF }, 1, 2},
		"it does not answer": {func(int) error { return context.DeadlineExceeded }, 1, 1},
	} {
		calls, woken := 0, map[string]struct{}{}
		mysql.WakeEach(names, func(name string) error {
			calls++
			woken[name] = struct{}{}
			return c.fails(calls - 1)
		})
		if len(woken) != c.woken || calls != c.calls {
			t.Errorf("%s: %d calls for %d instances, want %d for %d", name, calls, len(woken), c.calls, c.woken)
		}
	}
}

// A sidecar has at most as many connections as it may, and the one in which it sleeps.
func TestASleeperIsOneMoreConnection(t *testing.T) {
	t.Parallel()
	const most = 4 + 1 // the default
	s := on(t, shared)
	r, operator := s.sleeping("one", always), s.session()
	var calling sync.WaitGroup
	for i := range 40 {
		calling.Go(func() {
			for n := range 5 {
				key := fmt.Sprintf("ns/%d/%d", i, n)
				if _, err := r.SwapOne(cas.Swap{Key: key, Letters: []cas.Letter{{To: "one", Key: key}, {To: "nobody", Key: key}}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		calling.Wait()
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		var n int
		r.Must(operator.QueryRowContext(r.Ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE user = ?", s.Name).Scan(&n))
		if n > most {
			t.Errorf("it has %d connections, and may have %d", n, most)
		}
	}
	for range 200 {
		await.Receive(t, r.Letters, "a letter")
	}
	if state := r.State(); state.Max != most || state.Listener != "listening" {
		t.Errorf("metrics say %+v", state)
	}
}
