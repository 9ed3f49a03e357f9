package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

const lineLength = 100

// line contains calls that wait for one key, and the order in which they are granted.
type line struct {
	key  string
	apps []*app
	// outage: the store may be unavailable during their releases.
	outage bool

	r      *register
	mu     sync.Mutex
	order  []int
	tokens []int64
}

// standInLine queues calls for a key, in turn behind each of the sidecars. Each call starts when
// the one before is queued.
func standInLine(t *testing.T, key string, sidecars ...*sidecar) *line {
	t.Helper()
	l := newLine(t, key)
	looker := dial(t, sidecars[0].socket)
	for i := range lineLength {
		l.join(sidecars[i%len(sidecars)], looker, `{"wait_ms":-1}`)
	}
	return l
}

func newLine(t *testing.T, key string) *line { return &line{key: key, r: &register{t: t}} }

// join makes a call wait behind all earlier ones, and returns when it is queued.
func (l *line) join(s *sidecar, looker *app, body string) {
	a := dial(s.t, s.socket)
	a.send("PUT", lockPath(l.key), body)
	l.apps = append(l.apps, a)
	s.await("the next call to be queued", func() bool {
		return looker.call("GET", lockPath(l.key), "", "Cache-Control: no-cache").int("queue_length") == int64(len(l.apps))
	})
}

// run reads the answers. Each granted call releases the key. run returns when these calls have been
// granted.
func (l *line) run(still []int) {
	var wg sync.WaitGroup
	for _, i := range still {
		wg.Go(func() {
			token := l.next(i).granted()
			l.mu.Lock()
			l.order = append(l.order, i)
			l.tokens = append(l.tokens, token)
			l.mu.Unlock()
			l.release(i, token)
		})
	}
	wg.Wait()
}

// next reads the answer of the call that is granted the key.
func (l *line) next(i int) answer {
	ans := l.apps[i].read("PUT", lockPath(l.key))
	l.r.granted(l.key, int64(i+1), ans.granted())
	return ans
}

func (l *line) release(i int, token int64) {
	l.r.ending(l.key, int64(i+1))
	for l.outage {
		ans := l.apps[i].call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(l.key), token), "")
		if ans.status != 503 {
			return // released now, or by an earlier attempt
		}
		time.Sleep(20 * time.Millisecond) // the client's pause before a retry
	}
	l.apps[i].release(l.key, token)
}

func (l *line) check(t *testing.T, want []int) {
	t.Helper()
	if !slices.Equal(l.order, want) {
		t.Errorf("granted in the order %v, want %v", l.order, want)
	}
	if !slices.IsSorted(l.tokens) || len(slices.Compact(slices.Clone(l.tokens))) != len(l.tokens) {
		t.Errorf("the tokens do not grow: %v", l.tokens)
	}
}

// inLine returns the indexes for which keep is true.
func inLine(keep func(i int) bool) (places []int) {
	for i := range lineLength {
		if keep(i) {
			places = append(places, i)
		}
	}
	return places
}

// TestFirstInFirstOut: waiters behind several sidecars are served in one order.
// Proves: promise 5
func TestFirstInFirstOut(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	one, two := start(t, o), start(t, o)
	holder := dial(t, one.socket)
	token := holder.acquire("line", "")
	l := standInLine(t, "line", one, two)
	all := inLine(func(int) bool { return true })
	began := time.Now()
	holder.release("line", token)
	l.run(all)
	t.Logf("%d hand-offs in %s", lineLength, time.Since(began).Round(time.Millisecond))
	l.check(t, all)
	nothingLeft(t, url)
}

// TestLineSkipsTheDead: clients that left do not delay the queue. A killed sidecar delays it by its
// TTL at most.
// Proves: promise 5
func TestLineSkipsTheDead(t *testing.T) {
	t.Parallel()
	t.Run("same TTL", func(t *testing.T) { lineSkipsTheDead(t, 5*time.Second, 5*time.Second) })
	// These wait behind a holder whose lease ends much later. When the dead waiter becomes the
	// holder, its end is earlier than the reported one.
	t.Run("others with a long TTL", func(t *testing.T) { lineSkipsTheDead(t, time.Second, time.Hour) })
}

// lineSkipsTheDead gets two TTLs: that of the killed sidecar, and that of the others.
func lineSkipsTheDead(t *testing.T, dead, others time.Duration) {
	limit := dead + slowed(time.Second) // includes more than 50 hand-offs
	o, url := onPostgres(t)
	o = o.with(options{"TTL": others.String()})
	one, two := start(t, o), start(t, o)
	three := start(t, o.with(options{"TTL": dead.String()}))
	holder := dial(t, one.socket)
	token := holder.acquire("line", "")
	l := standInLine(t, "line", one, two, three)
	still := inLine(func(i int) bool { return i%5 != 4 && i%3 != 2 })
	closed := inLine(func(i int) bool { return i%5 == 4 })
	for _, i := range closed {
		l.apps[i].close()
	}
	queueOf(t, url, int64(lineLength-len(closed)))
	three.kill()
	killed := time.Now()
	holder.release("line", token)
	l.run(still)
	took := time.Since(killed)
	t.Logf("%d hand-offs, past %d dead waiters, ended %s after the kill", len(still), lineLength-len(still), took.Round(time.Millisecond))
	if took > limit {
		t.Errorf("want at most %s", limit)
	}
	l.check(t, still)
	nothingLeft(t, url)
}

// TestLineSkipsTheVanished: clients that left do not delay the queue, with any TTL.
// Proves: promise 5
func TestLineSkipsTheVanished(t *testing.T) {
	t.Parallel()
	limit := slowed(2 * time.Second) // includes 80 hand-offs; the TTL is an hour
	o, url := onPostgres(t)
	o = o.with(options{"TTL": "1h"})
	one, two := start(t, o), start(t, o)
	holder := dial(t, two.socket)
	token := holder.acquire("line", "")
	l := standInLine(t, "line", one, two)
	for _, i := range inLine(func(i int) bool { return i%5 == 4 }) {
		l.apps[i].close()
	}
	// The cancels may still be in flight during the hand-offs.
	still := inLine(func(i int) bool { return i%5 != 4 })
	began := time.Now()
	holder.release("line", token)
	l.run(still)
	took := time.Since(began)
	t.Logf("%d hand-offs in %s", len(still), took.Round(time.Millisecond))
	if took > limit {
		t.Errorf("want at most %s", limit)
	}
	l.check(t, still)
	nothingLeft(t, url)
}
