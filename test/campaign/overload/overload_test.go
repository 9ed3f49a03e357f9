package overload

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/wire"
	"github.com/locksidecar/locksidecar/test/campaign/measure"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var (
	binary  = flag.String("binary", "", "the sidecar as it is released; without it there is no overload")
	rate    = flag.Int("rate", 2000, "how many calls a second the app begins while the others are measured")
	results = flag.String("results", "", "the file that keeps what was seen")
)

const (
	// The app wants this many.
	connections, waits = 10_000, 50_000
	// hot is how many keys they wait for.
	hot = 10

	maxSessions, maxWaiters = 1000, 10_000 // the defaults

	// quiet is how long the others are measured before the app begins, and after it has gone.
	quiet   = 4 * time.Second
	churn   = 10 * time.Second
	settled = time.Minute
)

// plan is one way to run the sidecar that is overloaded.
type plan struct {
	name     string
	settings map[string]string
	env      []string
	conns    int // that it serves
	memory   int // the most bytes that it may have
	clients  int // of those who wait
}

var plans = []plan{
	// As the manifests have it.
	{"in a pod", nil, []string{"GOMEMLIMIT=100MiB"}, 1706, 128 << 20, connections},
	// With no limits but the sidecar's own: 40 KiB for a connection, and half as much garbage.
	{"on a host", nil, nil, 4*maxSessions + maxWaiters, 60 << 10 * (4*maxSessions + maxWaiters), maxWaiters + 2000},
}

func TestOverload(t *testing.T) {
	if *binary == "" {
		t.Fatal("-binary is missing: test/campaign/run.sh overload runs this; it takes minutes, and measures")
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Max < 16_000 {
		t.Fatalf("%d open files are allowed (%v), 16000 are needed: ulimit -Hn", files.Max, err)
	}
	cluster := pgtest.Start(t)
	seen := tableHead
	for _, p := range plans {
		t.Run(p.name, func(t *testing.T) { seen += p.run(t, cluster.NewDatabase(t)) })
	}
	if err := measure.Keep(*results, head, seen); err != nil {
		t.Error(err)
	}
}

const (
	head = "# An app that wants too much\n\nWritten by `test/campaign/run.sh overload`; what that does stands in [doc.go](doc.go).\n"
	// tableHead is the head of the table of the phases.
	tableHead = `
Others are clients of another sidecar on the same database; their times are of an acquire and its release, while the
app does its worst and, in parentheses, before and after. The memory is the most that the sidecar has ever had.

| the sidecar runs | the app wants | in | answers | memory | others' median | others' p99 | gone after |
|---|---|---|---|---|---|---|---|
`
)

// scene is a sidecar whose app wants too much, and one whose apps want to live with it.
type scene struct {
	plan
	t           *testing.T
	url         string
	over, other *world.Sidecar
	figures     *wire.Conn // a connection of its own, there before all others
	before      measure.Figures
	seen        strings.Builder // a line for each phase
}

// run returns what was seen.
func (p plan) run(t *testing.T, url string) string {
	config := world.Config{Folder: world.Folder(t), Logs: t.TempDir(), Binary: *binary, Settings: p.settings, Env: p.env}
	s := &scene{plan: p, t: t, url: url, over: world.Serve(t, config, 0, url), other: world.Serve(t, config, 1, url)}
	s.figures = s.dial()
	s.before = s.now()
	s.phase("connections", *rate, s.connections)
	s.phase("sessions", *rate, s.sessions)
	s.phase("waiters", *rate, s.waiters)
	s.phase("sessions opened and dropped", *rate/4, s.churn) // each is two connections and two calls
	s.phase("the same without a pace", 0, s.churn)
	return s.seen.String()
}

// phase lets a crowd do something, judges what is always judged, and how long the others'
// calls took if there is a pace.
func (s *scene) phase(what string, rate int, do func(*crowd)) {
	s.t.Run(what, func(t *testing.T) {
		outer := s.t
		s.t = t
		defer func() { s.t = outer }()
		undisturbed := s.bystanders(func() { time.Sleep(quiet) })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := newCrowd(s.over.Socket(), pace(ctx, rate))
		began := time.Now()
		during := s.bystanders(func() { do(c) })
		took, answers := time.Since(began), c.counts.String()
		c.leave()
		gone := s.gone()
		undisturbed = append(undisturbed, s.bystanders(func() { time.Sleep(quiet) })...)
		for _, wrong := range c.counts.wrong {
			t.Error(wrong)
		}
		if n := c.counts.of("503 store_unavailable"); n > 0 {
			t.Errorf("%d calls were told that the database is not available: it is", n)
		}
		if most := s.memory(); most > s.plan.memory {
			t.Errorf("the sidecar had %d MiB, more than %d MiB", most>>20, s.plan.memory>>20)
		}
		median, p99 := s.compare(undisturbed, during, 0.5, rate > 0), s.compare(undisturbed, during, 0.99, rate > 0)
		line := fmt.Sprintf("| %s | %s | %.0f s | %s | %d MiB | %s | %s | %.1f s |\n",
			s.name, what, took.Seconds(), answers, s.memory()>>20, median, p99, gone.Seconds())
		t.Log(line)
		s.seen.WriteString(line)
	})
}

// compare judges how long others' pairs of calls took.
func (s *scene) compare(undisturbed, during measure.Times, part float64, judged bool) string {
	was, is := undisturbed.Quantile(part), during.Quantile(part)
	times := is.Seconds() / was.Seconds()
	if judged && times > 2 {
		s.t.Errorf("others' p%.0f is %.1f times as long", part*100, times)
	}
	return fmt.Sprintf("%.1f ms (%.1f ms): %.1f times", is.Seconds()*1e3, was.Seconds()*1e3, times)
}

// bystanders are clients of the other sidecar, each with a lock of its own.
func (s *scene) bystanders(while func()) (all measure.Times) {
	const clients, pause = 4, 10 * time.Millisecond
	ctx, cancel := context.WithCancel(s.t.Context())
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			err := measure.Pairs(ctx, s.other.Socket(), fmt.Sprintf("bystander:%d", i), pause, func(took time.Duration) {
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
			})
			if err != nil {
				s.t.Error(err)
			}
		})
	}
	while()
	cancel()
	wg.Wait()
	return all
}

// connections: each makes a call that costs nothing, and stays.
func (s *scene) connections(c *crowd) {
	c.connect(connections, func(conn *wire.Conn, _ int) (wire.Answer, error) {
		return conn.Call(callLimit, "GET", "/v1", "")
	})
	s.expectOpen(c, min(connections, s.conns-1)) // but the one for figures
}

// sessions: each connection wants a lock, and so a session.
func (s *scene) sessions(c *crowd) {
	c.connect(connections, func(conn *wire.Conn, i int) (wire.Answer, error) {
		return conn.Call(callLimit, "PUT", fmt.Sprintf("/v1/locks/own:%d", i), "{}")
	})
	s.expectOpen(c, min(maxSessions, s.conns-1))
	if n, held := c.counts.of("429 limit"), s.count("SELECT count(*) FROM locksidecar.locks WHERE lease_id IS NOT NULL AND key LIKE 'own:%'"); n == 0 || held != c.open() {
		s.t.Errorf("%d calls were refused, %d locks are held", n, held)
	}
}

func (s *scene) expectOpen(c *crowd, want int) {
	if n := c.open(); n != want {
		s.t.Errorf("%d connections were served, not %d", n, want)
	}
}

// waiters: all wait for few keys.
func (s *scene) waiters(c *crowd) {
	holder, stream := s.part(c), s.part(c)
	for i := range hot {
		if a, err := holder.Call(callLimit, "PUT", hotPath(i), "{}"); err != nil || a.Status != 200 {
			s.t.Fatalf("the holder: %d %s %v", a.Status, a.Code, err)
		}
	}
	session, a, err := stream.Session(callLimit)
	if err != nil || session == "" {
		s.t.Fatalf("no session: %d %s %v", a.Status, a.Code, err)
	}
	c.wait(s.clients, waits, func(conn *wire.Conn, client int) error {
		return conn.Send("PUT", hotPath(client%hot), `{"wait_ms":-1}`, "Lock-Session: "+session)
	})
	s.await("all wait or were refused", func() error {
		waiting, pending, refused := int(s.now().Sum("locksidecar_waiters", "")), int(c.pending.Load()), int(c.refused.Load())
		if want := min(maxWaiters, s.conns-3); waiting != want || pending != want || refused != waits-want {
			return fmt.Errorf("%d wait, for %d answers, %d were refused", waiting, pending, refused)
		}
		return nil
	})
	if rows := s.count("SELECT count(*) FROM locksidecar.waiters"); rows != int(c.pending.Load()) {
		s.t.Errorf("%d rows of waiters for %d who wait", rows, c.pending.Load())
	}
	s.t.Logf("%d of %d calls wait", c.pending.Load(), waits)
}

// part opens a connection that leaves with the crowd.
func (s *scene) part(c *crowd) *wire.Conn {
	conn, err := c.dial()
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

func hotPath(i int) string { return fmt.Sprintf("/v1/locks/hot:%d", i) }

// churn opens sessions, acquires a lock in each, and drops all of it.
func (s *scene) churn(c *crowd) {
	const workers = 16
	ctx, cancel := context.WithTimeout(s.t.Context(), churn)
	defer cancel()
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				<-c.permits
				c.counts.note(c.openAndDrop(i))
			}
		})
	}
	wg.Wait()
	if n := c.counts.of("200"); n < 100 {
		s.t.Errorf("only %d sessions", n)
	}
}

// openAndDrop is one turn of churn.
func (c *crowd) openAndDrop(i int) (wire.Answer, error) {
	stream, err := c.dial()
	if err != nil {
		return wire.Answer{}, err
	}
	defer c.hangUp(stream)
	session, a, err := stream.Session(callLimit)
	if err != nil || session == "" {
		return a, err
	}
	conn, err := c.dial()
	if err != nil {
		return wire.Answer{}, err
	}
	defer c.hangUp(conn)
	// Its last lock may not be released yet.
	return conn.Call(callLimit, "PUT", fmt.Sprintf("/v1/locks/churn:%d", i), `{"wait_ms":10000}`, "Lock-Session: "+session)
}

// gone waits until nothing of the crowd is left, and returns how long that took.
func (s *scene) gone() time.Duration {
	began := time.Now()
	s.await("nothing of the app is left", func() error {
		now := s.now()
		var left []string
		for name, most := range map[string]float64{
			"locksidecar_connections": 1, "locksidecar_sessions": 0,
			// Connections to the database come and go.
			"go_goroutines": s.before["go_goroutines"] + 20, "process_open_fds": s.before["process_open_fds"] + 8,
		} {
			if now[name] > most {
				left = append(left, fmt.Sprintf("%s is %.0f", name, now[name]))
			}
		}
		if n := now.Sum("locksidecar_waiters", "") + now.Sum("locksidecar_locks_held", ""); n > 0 {
			left = append(left, fmt.Sprintf("%.0f waiters and locks", n))
		}
		if rows := s.count(`SELECT (SELECT count(*) FROM locksidecar.waiters) + (SELECT count(*) FROM locksidecar.locks WHERE lease_id IS NOT NULL)`); rows > 0 {
			left = append(left, fmt.Sprintf("%d rows", rows))
		}
		if len(left) > 0 {
			return fmt.Errorf("%s", strings.Join(left, ", "))
		}
		return nil
	})
	return time.Since(began)
}

func (s *scene) await(what string, f func() error) {
	s.t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) { // the pause of a poll
		err := f()
		if err == nil {
			return
		}
		if time.Since(began) > settled {
			s.t.Fatalf("%s: not within %s: %v", what, settled, err)
		}
	}
}

// dial opens a connection that belongs to the test.
func (s *scene) dial() *wire.Conn {
	conn, err := wire.Dial(s.over.Socket())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *scene) now() measure.Figures {
	f, err := measure.FiguresOf(s.figures)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// memory is the most bytes that the sidecar has had.
func (s *scene) memory() int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.over.Pid()))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kilobytes := math.MaxInt >> 10
	_, _ = fmt.Sscan(rest, &kilobytes)
	return kilobytes << 10
}

func (s *scene) count(sql string) (n int) {
	conn, err := pgx.Connect(s.t.Context(), s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(s.t.Context(), sql).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}
