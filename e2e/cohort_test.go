package e2e

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// middle is a queue in the middle of a cohort: a call behind sidecar one holds the key, which its sidecar has
// handed on by itself, and more calls of the cohort wait. The store shows the first call of the cohort as the
// holder, until tell sends it the news.
type middle struct {
	*line
	t        *testing.T
	url      string
	one, two *sidecar
	at       int // the index of the holder
	token    int64
	first    string // the session that the store shows as the holder
	session  string // the session of the holder
	tell     func()
}

// The queue has ten calls behind sidecar one, then ten behind sidecar two, and so on.
const (
	cohortLength = 10
	middleLength = 4 * cohortLength
)

func (m *middle) of(i int) *sidecar { return []*sidecar{m.one, m.two}[i/cohortLength%2] }

// behind returns the calls behind one sidecar that have not held the key.
func (m *middle) behind(s *sidecar) (still []int) {
	for i := m.at + 1; i < middleLength; i++ {
		if m.of(i) == s {
			still = append(still, i)
		}
	}
	return still
}

func (m *middle) all() (still []int) {
	for i := m.at + 1; i < middleLength; i++ {
		still = append(still, i)
	}
	return still
}

// inTheMiddle queues calls with these bodies, and returns during a cohort.
func inTheMiddle(t *testing.T, url string, one, two options, body func(i int) string) *middle {
	t.Helper()
	proxy, told := pgproxy.Start(t, url), make(chan struct{})
	m := &middle{line: newLine(t, "hot"), t: t, url: url, tell: sync.OnceFunc(func() { close(told) })}
	t.Cleanup(m.tell)
	proxy.On("adopt", pgproxy.BeforeSend, func() { <-told })
	m.one, m.two = start(t, one.with(options{"STORE_URL": proxy.URL()})), start(t, two.with(options{"STORE_URL": url}))
	holder, looker := dial(t, m.two.socket), dial(t, m.two.socket)
	token := holder.acquire(m.key, "")
	for i := range middleLength {
		m.join(m.of(i), looker, body(i))
	}
	m.one.hears()
	m.two.hears()
	holder.release(m.key, token)
	m.walk()
	return m
}

// walk lets the calls hold the key in turn, until one has got it from its sidecar. If the machine
// pauses for a tenth of a second, the store hands the key over, and the next cohort begins.
func (m *middle) walk() {
	m.t.Helper()
	for handedOn := 0; m.at < cohortLength; m.at++ {
		ans := m.next(m.at)
		if ans.granted() == m.token+1 {
			handedOn++
		} else {
			handedOn, m.first = 0, ans.str("session")
		}
		m.token, m.session = ans.int("token"), ans.str("session")
		if handedOn == 2 {
			m.tokens = append(m.tokens, m.token)
			return
		}
		m.release(m.at, m.token)
	}
	m.t.Fatal("no call got the key from its sidecar")
}

// storeKnowsTheFirst checks that the store still shows the first of the cohort.
func (m *middle) storeKnowsTheFirst() {
	m.t.Helper()
	if stored := pgtest.Query[int64](m.t, m.url, "SELECT token FROM locksidecar.locks WHERE "+notOfProbes); stored >= m.token || stored < m.token-31 {
		m.t.Fatalf("the store has the token %d, and %d is not of the same cohort", stored, m.token)
	}
}

// ends lets the other calls hold the key, in this order.
func (m *middle) ends(still []int) {
	m.t.Helper()
	m.run(still)
	m.check(m.t, still)
	nothingLeft(m.t, m.url)
}

func waits(int) string { return `{"wait_ms":-1}` }

// holder returns the answer to the holder's check that it still has the key.
func (m *middle) holder() answer {
	m.t.Helper()
	return m.apps[m.at].call("PATCH", lockPath(m.key), fmt.Sprintf(`{"token":%d}`, m.token))
}

// TestEventsDuringACohort: an event hits the holder, its sidecar or the database's connections during a
// cohort. The order and the tokens stay right, and only the meant grant ends.
// Proves: promise 5, promise 17
func TestEventsDuringACohort(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, m *middle){
		"listeners are cut off":     listenersCutOff,
		"the holder is asked":       stopInACohort,
		"a grant is broken":         breakInACohort,
		"a watch begins":            watchInACohort,
		"the holder has success":    successInACohort,
		"the sidecar is terminated": drainInACohort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := nothingHelps.with(options{"ALLOW_FORCE": "true"})
			body := waits
			if name == "the holder has success" {
				body = someSkip
			}
			test(t, inTheMiddle(t, cluster.NewDatabase(t), o, o, body))
		})
	}
}

func listenersCutOff(t *testing.T, m *middle) {
	if killed := pgtest.Terminate(t, m.url, listening); killed != 2 {
		t.Errorf("%d listeners were killed, want both", killed)
	}
	m.storeKnowsTheFirst()
	m.tell()
	m.release(m.at, m.token)
	m.ends(m.all())
}

// stopInACohort: a stop without a token is for the holder. The next holder is not asked to stop.
func stopInACohort(t *testing.T, m *middle) {
	b := dial(t, m.two.socket)
	b.call("POST", stopPath(m.key), `{"reason":"deploy"}`).want(202, "")
	m.one.await("the stop of the holder", func() bool { return m.holder().want(200, "").json["stopping"] != nil })
	m.storeKnowsTheFirst()
	m.tell()
	m.release(m.at, m.token)
	m.at++
	m.token = m.next(m.at).int("token")
	m.tokens = append(m.tokens, m.token)
	for _, ans := range []answer{m.holder(), b.call("GET", lockPath(m.key), "", "Cache-Control: no-cache")} {
		if ans.want(200, "").json["stopping"] != nil {
			t.Errorf("the next holder is asked to stop, too: %s", ans.body)
		}
	}
	m.release(m.at, m.token)
	m.ends(m.all())
}

// breakInACohort: another pod sees the first of the cohort, whose grant is over, and breaks it.
// Afterwards it sees the current holder.
func breakInACohort(t *testing.T, m *middle) {
	operator, force := dial(t, m.two.socket), lockPath(m.key)+"?force=true"
	operator.send("DELETE", force, "")
	m.two.await("the log line with the broken lock", func() bool { return len(m.two.logged("a lock is being broken", m.first)) > 0 })
	m.storeKnowsTheFirst()
	m.tell()
	operator.read("DELETE", force).want(200, "")
	m.holder().want(200, "")

	m.r.ending(m.key, int64(m.at+1))
	operator.call("DELETE", fmt.Sprintf("%s&token=%d", force, m.token), "").want(200, "")
	if lost := m.holder().want(410, "lock_lost"); lost.str("reason") != "forced" {
		t.Errorf("lost: %s", lost.body)
	}
	m.at++
	m.token = m.next(m.at).int("token")
	m.tokens = append(m.tokens, m.token)
	m.holder().want(200, "")
	m.release(m.at, m.token)
	m.ends(m.all())
}

// watchInACohort: streams begin with the first of the cohort. When the store learns of the holder,
// the streams show it, and then each later grant. Before that, the store does not know the holder's
// token.
func watchInACohort(t *testing.T, m *middle) {
	elsewhere := dial(t, m.two.socket)
	refused := func(reason string) {
		t.Helper()
		ans := elsewhere.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(m.key), m.token), "").want(409, "not_holder")
		if ans.str("reason") != reason {
			t.Errorf("refused for %q, want %q", ans.str("reason"), reason)
		}
	}
	var streams []*stream
	for _, s := range []*sidecar{m.one, m.two} {
		watching, state := watchKey(t, s.socket, m.key)
		if got := holderOf(state); got != m.first {
			t.Fatalf("the stream begins with %q, want %q", got, m.first)
		}
		streams = append(streams, watching)
	}
	refused("unknown_token")
	m.storeKnowsTheFirst()
	m.tell()
	for range cohortLength + cohortLength/2 {
		for _, s := range streams {
			s.sees("released")
			if e := s.want("acquired"); holderOf(e) != m.session {
				t.Fatalf("acquired by %q, want %q", holderOf(e), m.session)
			}
		}
		refused("other_session")
		m.release(m.at, m.token)
		m.at++
		ans := m.next(m.at)
		m.token, m.session = ans.int("token"), ans.str("session")
		elsewhere = dial(t, []*sidecar{m.two, m.one}[m.at/cohortLength%2].socket)
	}
	m.tokens = append(m.tokens, m.token)
	m.release(m.at, m.token)
	m.ends(m.all())
}

func holderOf(e event) string {
	holder, _ := e.data["holder"].(map[string]any)
	session, _ := holder["session"].(string)
	return session
}

// someSkip: after the first ten, every third call is a skip-waiter.
func someSkip(i int) string {
	if skips(i) {
		return `{"wait_ms":-1,"on_success":"skip"}`
	}
	return waits(i)
}

func skips(i int) bool { return i >= cohortLength && i%3 == 0 }

// successInACohort: all skip-waiters get the result, and the other waiters get the key.
func successInACohort(_ *testing.T, m *middle) {
	m.storeKnowsTheFirst()
	m.tell()
	m.r.ending(m.key, int64(m.at+1))
	m.apps[m.at].releaseWith(m.key, m.token, "&outcome=success", `{"result":7}`)
	var others []int
	for _, i := range m.all() {
		if skips(i) {
			m.apps[i].read("PUT", lockPath(m.key)).skipped("7")
		} else {
			others = append(others, i)
		}
	}
	m.ends(others)
}

// drainInACohort: the waiters of a draining sidecar are refused, and the key goes to the other pod.
func drainInACohort(t *testing.T, m *middle) {
	m.one.signal(syscall.SIGTERM)
	for _, i := range m.behind(m.one) {
		m.apps[i].read("PUT", lockPath(m.key)).want(503, "draining")
	}
	m.storeKnowsTheFirst()
	m.tell()
	m.release(m.at, m.token)
	m.ends(m.behind(m.two))
	if code := m.one.wait(); code != 0 {
		t.Errorf("ended with code %d", code)
	}
}

// TestSidecarKilledInACohort: the other pod's waiters get the key within the TTL. Those of the dead
// sidecar are gone.
// Proves: promise 5, promise 8
func TestSidecarKilledInACohort(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	limit := ttl + slowed(time.Second) // includes 20 hand-offs
	o := options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms"}
	m := inTheMiddle(t, cluster.NewDatabase(t), o, o, waits)
	m.one.kill()
	killed := time.Now()
	m.r.ending(m.key, int64(m.at+1))
	m.storeKnowsTheFirst()
	m.ends(m.behind(m.two))
	if took := time.Since(killed); took > limit {
		t.Errorf("the other pod's waiters got the key %s after the kill, want at most %s", took, limit)
	}
}

// TestDatabaseKilledInACohort: the server recovers from a crash. The key never has two holders, and
// each pod's calls keep their order.
// Proves: promise 5, promise 8
func TestDatabaseKilledInACohort(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgroles.Template())
	o := options{"TTL": "20s"}
	m := inTheMiddle(t, own.NewDatabase(t), o, o, waits)
	own.Kill()
	m.tell()
	m.outage = true
	var line sync.WaitGroup
	line.Go(func() {
		m.release(m.at, m.token)
		m.run(m.all())
	})
	own.Restart(t)
	line.Wait()
	for _, s := range []*sidecar{m.one, m.two} {
		order := slices.DeleteFunc(slices.Clone(m.order), func(i int) bool { return m.of(i) != s })
		if want := m.behind(s); !slices.Equal(order, want) {
			t.Errorf("granted behind one sidecar in the order %v, want %v", order, want)
		}
	}
	nothingLeft(t, m.url)
}
