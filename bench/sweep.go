package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

const (
	// sweepRate is how many new keys a second are acquired and released, on so many connections.
	sweepRate        = 1000
	sweepConnections = 200
	// sweepAge is how long a free key keeps its row here. It is an hour in sidecars.
	sweepAge = time.Minute
	// sweepRows is how many rows there are before, a tenth of them free for long.
	sweepRows = 10_000_000
	// sweepWindow is what a line of the table is about.
	sweepWindow = time.Minute
)

// sweeps shows that the table of locks stops growing where ever new keys are used: beside
// a sidecar that is asked for them runs a store in this process that sweeps.
func (b *bench) sweeps() error {
	rows := sweepRows
	if b.most > 0 {
		rows = b.most
	}
	cluster, url, err := b.database()
	if err != nil {
		return err
	}
	defer cluster.Stop()
	sidecar, err := b.sidecar("sweep", "STORE_URL="+url)
	if err != nil {
		return err
	}
	defer sidecar.stop()
	c, err := b.counter(url)
	if err != nil {
		return err
	}
	defer c.close()
	if err := b.fillToSweep(c, rows); err != nil {
		return err
	}
	sweeper, err := b.sweeper(url)
	if err != nil {
		return err
	}
	defer sweeper.stop()
	keys, err := b.newKeys(sidecar)
	if err != nil {
		return err
	}
	defer keys.stop()

	b.log.Printf("sweep: %d new keys a second on %d connections, each forgotten when it was free for %s; a line a minute", sweepRate, sweepConnections, sweepAge)
	var text strings.Builder
	text.WriteString("| min | rows | heap (MiB) | index (MiB) | dead rows | autovacuums | keys/s | rows swept/s | laps | last lap (s) | steps | step mean (ms) | slowest (ms) | acquire median (ms) | p99 (ms) | slowest (ms) | load |\n" +
		"|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	var seen []swept
	for minute := range b.minutes {
		s, err := b.watchSweep(c, sweeper, keys)
		if err != nil {
			return err
		}
		line := s.line(minute + 1)
		b.log.Print("sweep: " + line)
		text.WriteString(line + "\n")
		seen = append(seen, s)
	}
	counted, err := c.number("SELECT count(*) FROM locksidecar.locks")
	if err != nil {
		return err
	}
	b.log.Printf("sweep: counted one by one there are %d rows now", counted)
	if err := errors.Join(keys.failure(), sweeper.failure(), grows(seen)); err != nil || !b.write {
		return err
	}
	head := fmt.Sprintf("# How much the table of locks grows\n\nMeasured %s by `go run ./bench -sweep -write`; what was printed meanwhile is in [sweep.log](sweep.log).\n\n"+
		"%d rows are there before: nine tenths are held all the time, one tenth has been free for a day. Then each second %d keys that were never used are acquired and released "+
		"through a sidecar, on %d connections. A key is forgotten when it has been free for %s (in sidecars: an hour), and a lap of the sweep begins %s after the one before at the earliest (in sidecars: 8 minutes). "+
		"The rows are those inserted less those deleted, as PostgreSQL counts them. Steps are the statements `sweep_step`. The load is the machine's average, with whatever else it had to do.\n\nMachine: %s\n\n",
		time.Now().UTC().Format("2006-01-02"), rows, sweepRate, sweepConnections, sweepAge, sweepAge/6, b.machine)
	return errors.Join(
		os.WriteFile("bench/SWEEP.md", []byte(head+text.String()), 0o644),
		os.WriteFile("bench/sweep.log", []byte(b.logged.String()), 0o644))
}

// fillToSweep adds locks that are held, and keys that have long been free, among each other.
func (b *bench) fillToSweep(c *counter, rows int) error {
	if err := c.exec("SET work_mem = '512MB'"); err != nil {
		return err
	}
	if err := b.fill(c, 0, rows); err != nil {
		return err
	}
	return errors.Join(
		c.exec("UPDATE locksidecar.locks SET lease_id = NULL, attempt_id = NULL, freed_at = clock_timestamp() - interval '1 day' WHERE token % 10 = 0"),
		c.exec("VACUUM ANALYZE locksidecar.locks"), c.exec("CHECKPOINT"))
}

// inBackground is something that goes on until it is stopped, or fails.
type inBackground struct {
	ended  sync.WaitGroup
	done   chan struct{}
	failed atomic.Pointer[error]
}

func (i *inBackground) fail(err error) { i.failed.CompareAndSwap(nil, &err) }

func (i *inBackground) failure() error {
	if err := i.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// over reports whether it was stopped, after a pause.
func (i *inBackground) over(pause time.Duration) bool {
	select {
	case <-i.done:
		return true
	case <-time.After(pause):
		return false
	}
}

// sweeper sweeps lap after lap.
type sweeper struct {
	inBackground
	space *postgres.Space
	st    store.Store
	laps  atomic.Int64
	last  atomic.Int64 // how long the last took, in ns
}

func (b *bench) sweeper(url string) (*sweeper, error) {
	space, err := postgres.NewSpace(postgres.Config{URL: url, ForgetAfter: sweepAge})
	if err != nil {
		return nil, err
	}
	if err := space.Start(b.ctx); err != nil {
		return nil, err
	}
	st := space.View(store.Identity{Namespace: "default", Instance: "sweeper", Pod: "sweeper"})
	if err := st.Start(b.ctx, nil); err != nil {
		space.Stop()
		return nil, err
	}
	s := &sweeper{space: space, st: st, inBackground: inBackground{done: make(chan struct{})}}
	s.ended.Go(func() {
		const short = 50 * time.Millisecond // no lap of ten million rows
		for !s.over(time.Second) {
			began := time.Now()
			if err := st.Sweep(b.ctx); err != nil && st.Ready() == nil {
				s.fail(fmt.Errorf("sweep: %w", err))
				return
			}
			if took := time.Since(began); took > short {
				s.laps.Add(1)
				s.last.Store(int64(took))
			}
		}
	})
	return s, nil
}

func (s *sweeper) stop() {
	close(s.done)
	s.ended.Wait()
	s.st.Stop()
	s.space.Stop()
}

// newKeys acquires and releases keys that were never used, as many a second as wanted.
type newKeys struct {
	inBackground
	conns []*conn
	mu    sync.Mutex
	took  []float64 // by acquires since they were last asked for, in ms
}

func (b *bench) newKeys(sidecar *process) (*newKeys, error) {
	conns, err := dialMany([]string{sidecar.socket}, sweepConnections)
	if err != nil {
		closeAll(conns)
		return nil, err
	}
	n := &newKeys{conns: conns, inBackground: inBackground{done: make(chan struct{})}}
	const each = time.Second * sweepConnections / sweepRate
	for i, c := range conns {
		next := takesNew(c, i)
		n.ended.Go(func() {
			for due := time.Now().Add(each * time.Duration(i) / sweepConnections); !n.over(time.Until(due)); due = due.Add(each) {
				took, err := next()
				if err != nil {
					n.fail(err)
					return
				}
				n.mu.Lock()
				n.took = append(n.took, milliseconds(took))
				n.mu.Unlock()
			}
		})
	}
	return n, nil
}

// takesNew acquires and releases a key that was never used; it returns how long the acquire took.
func takesNew(c *conn, i int) func() (time.Duration, error) {
	request, n := make([]byte, 0, 256), 0
	return func() (took time.Duration, err error) {
		n++
		key := fmt.Sprintf("new:%d:%d", n, i)
		began := time.Now()
		if request, err = c.acquire(key, request); err != nil {
			return 0, err
		}
		took = time.Since(began)
		request, err = c.release(key, request)
		return took, err
	}
}

func (n *newKeys) stop() {
	close(n.done)
	n.ended.Wait()
	closeAll(n.conns)
}

// taken is how long the acquires took since this was last asked, in ms.
func (n *newKeys) taken() []float64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	took := n.took
	n.took = nil
	return took
}

// swept is what was seen in a window.
type swept struct {
	rows, heap, index, dead, vacuums int64
	keys, gone                       float64 // a second
	laps                             int64
	lap                              time.Duration
	steps                            int64
	mean, slowest                    float64 // ms, of a step
	acquires                         []float64
	load                             string // of the machine, the average of a minute
}

func (s swept) line(minute int) string {
	return fmt.Sprintf("| %d | %d | %.0f | %.0f | %d | %d | %.0f | %.0f | %d | %.1f | %d | %.1f | %.1f | %.2f | %.1f | %.0f | %s |",
		minute, s.rows, float64(s.heap)/mib, float64(s.index)/mib, s.dead, s.vacuums, s.keys, s.gone, s.laps, s.lap.Seconds(),
		s.steps, s.mean, s.slowest, median(s.acquires), p99(s.acquires), slices.Max(s.acquires), s.load)
}

// watchSweep watches for a while.
func (b *bench) watchSweep(c *counter, sweeper *sweeper, keys *newKeys) (s swept, err error) {
	if err := c.reset(); err != nil {
		return s, err
	}
	before, err := c.churn()
	if err != nil {
		return s, err
	}
	keys.taken()
	began, laps := time.Now(), sweeper.laps.Load()
	if err := b.rest(sweepWindow); err != nil {
		return s, err
	}
	if err := errors.Join(keys.failure(), sweeper.failure()); err != nil {
		return s, err
	}
	s.acquires = keys.taken()
	loads, _ := os.ReadFile("/proc/loadavg")
	s.load, _, _ = strings.Cut(string(loads), " ")
	seconds := time.Since(began).Seconds()
	after, err := c.churn()
	if err != nil {
		return s, err
	}
	s.keys, s.gone = float64(len(s.acquires))/seconds, float64(after.deleted-before.deleted)/seconds
	s.rows, s.dead, s.vacuums = after.inserted-after.deleted, after.dead, after.vacuums
	s.laps, s.lap = sweeper.laps.Load()-laps, time.Duration(sweeper.last.Load())
	err = c.db.QueryRow(c.ctx, mine+`SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(total_exec_time) / sum(calls), 0), coalesce(max(max_exec_time), 0),
			pg_relation_size('locksidecar.locks'), pg_relation_size('locksidecar.locks_pkey')
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND query LIKE '/* locksidecar:sweep_step%'`).Scan(&s.steps, &s.mean, &s.slowest, &s.heap, &s.index)
	return s, err
}

// churn is what came and went in the table of locks since it was made.
type churn struct{ inserted, deleted, dead, vacuums int64 }

func (c *counter) churn() (n churn, err error) {
	err = c.db.QueryRow(c.ctx, mine+`SELECT n_tup_ins, n_tup_del, n_dead_tup, autovacuum_count
		FROM pg_stat_user_tables WHERE relid = 'locksidecar.locks'::regclass`).Scan(&n.inserted, &n.deleted, &n.dead, &n.vacuums)
	return n, err
}

// grows is an error where there are more rows in the last quarter than in the second.
func grows(seen []swept) error {
	most := func(some []swept) (rows int64) {
		for _, s := range some {
			rows = max(rows, s.rows)
		}
		return rows
	}
	n := len(seen)
	if n < 4 {
		return nil
	}
	if early, late := most(seen[n/4:n/2]), most(seen[n-n/4:]); late > early+early/100 {
		return fmt.Errorf("the table grows: it had %d rows at the most in the second quarter, and %d in the last", early, late)
	}
	return nil
}
