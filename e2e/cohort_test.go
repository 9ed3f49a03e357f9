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

// middle is a line in the middle of a cohort: a call behind sidecar one has got the key from its sidecar, and
// others of the cohort wait. The store knows the first of the cohort as the holder until tell is called.
type middle struct {
	*line
	t        *testing.T
	url      string
	one, two *sidecar
	at       int // whose turn it is
	token    int64
	first    string // the session that the store knows as the holder
	session  string // that of the holder
	tell     func()
}

// Ten calls behind sidecar one, then ten behind two, and so on.
const (
	cohortLength = 10
	middleLength = 4 * cohortLength
)

func (m *middle) of(i int) *sidecar { return []*sidecar{m.one, m.two}[i/cohortLength%2] }

// behind are the calls behind one sidecar that have not had the key.
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

// inTheMiddle makes a line, in which calls ask with these bodies, and walks into a cohort.
func inTheMiddle(t *testing.T, url string, one, two options, body func(i int) string) *middle {
	t.Helper()
	proxy, told := pgproxy.Start(t, url), make(chan struct{})
	m := &middle{line: newLine(t, "hot"), t: t, url: url, tell: sync.OnceFunc(func() { close(told) })}
	t.Cleanup(m.tell)
	proxy.On("amend", pgproxy.BeforeSend, func() { <-told })
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

// walk lets one after the other have the key, until one has got it from its sidecar. On a machine that does nothing
// for a tenth of a second it is handed over by the store, and the next cohort begins.
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

// storeKnowsTheFirst checks that the store has not heard of the holder.
func (m *middle) storeKnowsTheFirst() {
	m.t.Helper()
	if stored := pgtest.Query[int64](m.t, m.url, "SELECT token FROM locksidecar.locks"); stored >= m.token || stored < m.token-31 {
		m.t.Fatalf("the store knows the token %d: %d is not that of a cohort", stored, m.token)
	}
}

// ends lets the others have the key, who must get it in this order.
func (m *middle) ends(still []int) {
	m.t.Helper()
	m.run(still)
	m.check(m.t, still)
	nothingLeft(m.t, m.url)
}

func waits(int) string { return `{"wait_ms":-1}` }

// holder is what a call of the holder answers that asks whether it still has the key.
func (m *middle) holder() answer {
	m.t.Helper()
	return m.apps[m.at].call("PATCH", lockPath(m.key), fmt.Sprintf(`{"token":%d}`, m.token))
}

// TestInACohort: what happens to the holder of a key, its sidecar or the connections to the database while a sidecar
// hands a key on to its own waiters changes neither the order nor the tokens, and ends nobody else's grant.
func TestInACohort(t *testing.T) {
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

// stopInACohort: the request names no grant, so it is for the holder. The next one does not hear of it.
func stopInACohort(t *testing.T, m *middle) {
	b := dial(t, m.two.socket)
	b.call("POST", stopPath(m.key), `{"reason":"deploy"}`).want(202, "")
	m.one.await("the holder to be asked", func() bool { return m.holder().want(200, "").json["stopping"] != nil })
	m.storeKnowsTheFirst()
	m.tell()
	m.release(m.at, m.token)
	m.at++
	m.token = m.next(m.at).int("token")
	m.tokens = append(m.tokens, m.token)
	for _, ans := range []answer{m.holder(), b.call("GET", lockPath(m.key), "", "Cache-Control: no-cache")} {
		if ans.want(200, "").json["stopping"] != nil {
			t.Errorf("the next one is asked, too: %s", ans.body)
		}
	}
	m.release(m.at, m.token)
	m.ends(m.all())
}

// breakInACohort: another pod sees the first of the cohort, whose grant is over, and breaks that. Then it sees the
// holder.
func breakInACohort(t *testing.T, m *middle) {
	operator, force := dial(t, m.two.socket), lockPath(m.key)+"?force=true"
	operator.send("DELETE", force, "")
	m.two.await("a line that says what is broken", func() bool { return len(m.two.logged("a lock is being broken", m.first)) > 0 })
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

// watchInACohort: streams begin with the first of the cohort. They hear of the holder when the store does, and then
// of each grant. The store does not know the holder's token before.
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
			t.Fatalf("it begins with %q, want %q", got, m.first)
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

// someSkip: behind the first ten, every third call wants the result.
func someSkip(i int) string {
	if skips(i) {
		return `{"wait_ms":-1,"on_success":"skip"}`
	}
	return waits(i)
}

func skips(i int) bool { return i >= cohortLength && i%3 == 0 }

// successInACohort: all that asked for the result get it, and the others the key.
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

// drainInACohort: who waits behind a sidecar that drains is sent away, and the key goes to the other pod.
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

// TestSidecarKilledInACohort: the other pod's waiters have the key within the TTL. The dead one's are gone.
func TestSidecarKilledInACohort(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	limit := ttl + slowed(time.Second) // with 20 hand-offs
	o := options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms"}
	m := inTheMiddle(t, cluster.NewDatabase(t), o, o, waits)
	m.one.kill()
	killed := time.Now()
	m.r.ending(m.key, int64(m.at+1))
	m.storeKnowsTheFirst()
	m.ends(m.behind(m.two))
	if took := time.Since(killed); took > limit {
		t.Errorf("the other pod's waiters had the key %s after the kill, want at most %s", took, limit)
	}
}

// TestDatabaseKilledInACohort: the server recovers from a crash. Nobody gets the key twice, and each pod's calls
// keep their order.
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
