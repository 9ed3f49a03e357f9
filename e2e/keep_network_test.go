package e2e

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/process"
)

// These tests delay and lose single messages from a store to the sidecar that keeps a key, while another sidecar wants the key.

// message is what a test delays or loses.
type message int

const (
	// recalled: another sidecar wants the key.
	recalled message = iota
	// grantedKeepable is the answer with a grant that may be kept.
	grantedKeepable
	// givenUp is the answer that a key was released.
	givenUp
)

// faulty is what lies between a store and a sidecar. Each method returns what ends the fault, and tells whether a message was hit.
type faulty interface {
	// delay keeps messages of one kind, and perhaps all others to the sidecar. When the fault ends, they arrive.
	delay(m message) (end func() (hit bool))
	// lose drops messages of one kind, and perhaps the next others. It returns nil if it cannot.
	lose(m message) (end func() (hit bool))
	// cut closes all connections, and new ones at once.
	cut()
}

// byStatement sees each message of PostgreSQL.
type byStatement struct{ *pgproxy.Proxy }

var answersOf = map[message][]string{
	grantedKeepable: {"acquire_one", "acquire_row", "acquire_rows", "acquire_many"},
	givenUp:         {"release_one", "release_many", "release"},
}

// hits counts what a fault has hit.
type hits struct {
	mu sync.Mutex
	n  int
}

func (h *hits) hit() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
}

func (h *hits) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n > 0
}

func isRecall(payload string) bool { return strings.HasPrefix(payload, "recall:") }

func (p byStatement) delay(m message) (end func() bool) {
	var hit hits
	arrive := make(chan struct{})
	wait := func() {
		hit.hit()
		<-arrive
	}
	var hooks []*pgproxy.Hook
	for _, name := range answersOf[m] {
		hooks = append(hooks, p.On(name, pgproxy.AfterCommandComplete, wait))
	}
	if m == recalled {
		p.OnNotification(func(payload string) bool {
			if isRecall(payload) {
				wait()
			}
			return true
		})
	}
	once := sync.OnceFunc(func() {
		for _, h := range hooks {
			h.Disarm()
		}
		if m == recalled {
			p.OnNotification(nil)
		}
		close(arrive)
	})
	return func() bool {
		once()
		return hit.any()
	}
}

func (p byStatement) cut() {
	p.Refuse(true)
	p.CutAll()
}

func (p byStatement) lose(m message) (end func() bool) {
	var hit hits
	if m == recalled {
		p.OnNotification(func(payload string) bool {
			if isRecall(payload) {
				hit.hit()
			}
			return !isRecall(payload)
		})
		return func() bool {
			p.OnNotification(nil)
			return hit.any()
		}
	}
	var cuts []*pgproxy.Hook
	for _, name := range answersOf[m] {
		cuts = append(cuts, p.Cut(pgproxy.Cut{Statement: name, Stage: pgproxy.AfterSend, Do: hit.hit}))
	}
	return func() bool {
		for _, c := range cuts {
			c.Disarm()
		}
		return hit.any()
	}
}

// byPacket does not understand what it passes on. A test that delays or loses one message does so with all of its time.
type byPacket struct {
	*process.Link
	isRecall func(packet []byte) bool // nil: no packet is just a recall
}

func (l byPacket) delay(message) (end func() bool) {
	l.Delay()
	return l.end
}

func (l byPacket) lose(m message) (end func() bool) {
	switch {
	case m != recalled:
		l.Mute()
	case l.isRecall == nil:
		return nil
	default:
		var hit hits
		l.Lose(func(packet []byte) bool {
			if l.isRecall(packet) {
				hit.hit()
			}
			return l.isRecall(packet)
		})
		return func() bool {
			l.Mend()
			return hit.any()
		}
	}
	return l.end
}

func (l byPacket) cut() { l.Cut() }

func (l byPacket) end() bool {
	l.Mend()
	return true
}

// isPublished reports whether a packet of Redis is a letter. The news of this test are recalls.
func isPublished(packet []byte) bool {
	return bytes.HasPrefix(packet, []byte(">3\r\n$7\r\nmessage\r\n")) || bytes.HasPrefix(packet, []byte("*3\r\n$7\r\nmessage\r\n"))
}

// behindFaults runs a test on each store that keeps keys. The first options are those of a sidecar behind the faults.
func behindFaults(t *testing.T, test func(t *testing.T, far, near options, net faulty)) {
	t.Helper()
	chosen := strings.Split(*only, ",")
	linked := func(t *testing.T, o options, isRecall func([]byte) bool) {
		t.Helper()
		u, err := url.Parse(o["STORE_URL"])
		if err != nil {
			t.Fatal(err)
		}
		link := process.NewLink(t, u.Host)
		u.Host = link.Address
		test(t, o.with(options{"STORE_URL": u.String()}), o, byPacket{link, isRecall})
	}
	for name, run := range map[string]func(t *testing.T){
		"postgres": func(t *testing.T) {
			o, database := onPostgres(t)
			proxy := pgproxy.Start(t, database)
			test(t, o.with(options{"STORE_URL": proxy.URL()}), o, byStatement{proxy})
		},
		"redis": func(t *testing.T) { linked(t, onSharedRedis(t), isPublished) },
		"etcd":  func(t *testing.T) { linked(t, onSharedEtcd(t), nil) },
		"mysql": func(t *testing.T) { linked(t, onSharedMySQL(t), nil) },
	} {
		if slices.Contains(chosen, name) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(t)
			})
		}
	}
}

// keptScene is a key that the sidecar behind the faults keeps, and that an app of another sidecar wants.
type keptScene struct {
	t        *testing.T
	one, two *sidecar // the first one is behind the faults
	net      faulty
	a, b     *app
	key      string

	mu     sync.Mutex
	holder string
	last   int64
}

const (
	// oldestGrant is for how long after its ask a grant is kept at most: what a lost recall can cost.
	oldestGrant = 2 * time.Second
	// lateBy is by how much messages are late.
	lateBy = 300 * time.Millisecond
	// useFor is for how long a busy app holds the key each time. With this, the tokens of a grant last for much longer than oldestGrant.
	useFor = 50 * time.Millisecond
)

// TestSingleMessagesOfKeptKeys: of what a store sends to the sidecar that keeps a key, one message is late or lost: a recall, the answer with the grant, or the
// answer that the key was given up. No two apps have the key at a time, tokens grow, and the app of the other sidecar gets the key in time: at the latest when
// the grant is too old to be kept.
// Proves: promise 1, promise 3, promise 9, trap kept key, trap recall
func TestSingleMessagesOfKeptKeys(t *testing.T) {
	t.Parallel()
	behindFaults(t, func(t *testing.T, far, near options, net faulty) {
		more := options{"KEEP": longestKeep, "TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll}
		one, two := start(t, far.with(more)), start(t, near.with(more))
		for _, c := range []struct {
			name string
			play func(s *keptScene) (hit bool) // or false: it must be played again
		}{
			{"a late recall of an idle key", func(s *keptScene) bool { return s.recall(s.net.delay, lateBy, false) }},
			{"a late recall of a key in use", func(s *keptScene) bool { return s.recall(s.net.delay, lateBy, true) }},
			{"a lost recall of an idle key", func(s *keptScene) bool { return s.recall(s.net.lose, 0, false) }},
			{"a lost recall of a key in use", func(s *keptScene) bool { return s.recall(s.net.lose, 0, true) }},
			{"a late answer to a give-up", func(s *keptScene) bool { return s.giveUp(s.net.delay) }},
			{"a lost answer to a give-up", func(s *keptScene) bool { return s.giveUp(s.net.lose) }},
			{"a late grant", (*keptScene).lateGrant},
			{"a grant that comes too late", (*keptScene).oldGrant},
			{"a lost grant", (*keptScene).lostGrant},
		} {
			t.Run(c.name, func(t *testing.T) {
				const most = 5 // a slow machine may have given the key up before
				for n := range most {
					s := &keptScene{t: t, one: one, two: two, net: net, a: dial(t, one.socket), b: dial(t, two.socket), key: fmt.Sprint(c.name, ":", n)}
					hit := c.play(s)
					s.ends()
					if hit || t.Failed() {
						return
					}
				}
				t.Errorf("in %d tries the fault did not happen, or the other app did not learn of the holder", most)
			})
		}
	})
}

// has notes who has the key; empty: nobody any more.
func (s *keptScene) has(who string, token int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case who == "":
	case s.holder != "":
		s.t.Errorf("%s and %s have the key", s.holder, who)
	case token <= s.last:
		s.t.Errorf("%s: token %d after %d", who, token, s.last)
	}
	s.holder, s.last = who, token
}

// gets reads the grant of a call that waits.
func (s *keptScene) gets(who string, by *app) int64 {
	s.t.Helper()
	return s.granted(who, by.read("PUT", lockPath(s.key)))
}

func (s *keptScene) granted(who string, ans answer) int64 {
	s.t.Helper()
	token := ans.granted()
	s.has(who, token)
	return token
}

func (s *keptScene) releases(by *app, token int64) {
	s.t.Helper()
	s.has("", token)
	by.release(s.key, token)
}

// ends checks that the key is free, and that all goes on.
func (s *keptScene) ends() {
	s.t.Helper()
	for who, by := range map[string]*app{"a": s.a, "b": s.b} {
		s.asks(by, `{"wait_ms":-1}`)
		s.releases(by, s.gets(who, by))
		by.close()
	}
}

// asks sends a call for the key.
func (s *keptScene) asks(by *app, body string) {
	s.t.Helper()
	by.send("PUT", lockPath(s.key), body)
}

// seen is how the other sidecar sees the key.
func (s *keptScene) seen() answer {
	s.t.Helper()
	return s.b.call("GET", lockPath(s.key), "", "Cache-Control: no-cache")
}

// uses lets another app of the keeper use the key again and again, until stop is called.
func (s *keptScene) uses() (stop func()) {
	s.t.Helper()
	busy, over := dial(s.t, s.one.socket), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
			}
			s.asks(busy, `{"wait_ms":-1}`)
			token := s.gets("busy", busy)
			time.Sleep(useFor)
			s.releases(busy, token)
		}
	})
	return func() {
		close(over)
		work.Wait()
	}
}

// recall lets a recall come late, or never. The other app gets the key when the recall arrives, or when the grant is too old.
func (s *keptScene) recall(fault func(message) (end func() bool), late time.Duration, used bool) (hit bool) {
	s.t.Helper()
	s.last = s.one.keeps(s.a, s.key)
	end := fault(recalled)
	if end == nil {
		s.t.Log("recalls of this store are not lost alone")
		return true
	}
	s.t.Cleanup(func() { end() })
	stop := func() {}
	if used {
		stop = s.uses()
	}
	began, limit := time.Now(), oldestGrant
	s.asks(s.b, `{"wait_ms":-1}`)
	if late > 0 {
		limit = late
		time.Sleep(late)
		hit = end()
	}
	token := s.gets("b", s.b)
	took := time.Since(began)
	if s.t.Logf("granted after %s", took.Round(time.Millisecond)); took > limit+slowed(promptly) {
		s.t.Errorf("want it within %s", limit+slowed(promptly))
	}
	hit = end() || hit
	s.releases(s.b, token)
	stop()
	return hit
}

// giveUp lets the keeper not hear that it has given the key up, and that another app has it. Its own calls do not get the key, and are not told that it keeps the
// key. What it does to find out frees nobody else's lock.
func (s *keptScene) giveUp(fault func(message) (end func() bool)) (hit bool) {
	s.t.Helper()
	s.last = s.one.keeps(s.a, s.key)
	end := fault(givenUp)
	s.t.Cleanup(func() { end() })
	s.two.await("the end of the give-up", func() bool { return s.seen().str("state") == "free" })
	s.asks(s.b, `{"wait_ms":-1}`)
	token := s.gets("b", s.b)
	waits, tries := dial(s.t, s.one.socket), dial(s.t, s.one.socket)
	s.asks(waits, `{"wait_ms":-1}`)
	s.asks(tries, "")
	holds := func() {
		s.t.Helper()
		s.b.call("PATCH", lockPath(s.key), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
	}
	holds()
	hit = end()
	if ans := tries.read("PUT", lockPath(s.key)); ans.status != 503 && (ans.status != 423 || ans.json["kept"] == true) {
		s.t.Errorf("a try: %d %s", ans.status, ans.body)
	}
	s.two.awaitQueue(s.key, 1)
	holds()
	s.releases(s.b, token)
	s.releases(waits, s.gets("a", waits))
	return hit
}

// comesAgain lets the app of the keeper ask for the key when the grant may be kept. It returns when the store has granted that, or the app has its answer.
// Otherwise the grant may not be kept, and the scene is over.
func (s *keptScene) comesAgain(fault func(message) (end func() bool)) (end func() bool, answered <-chan answer, keepable bool) {
	s.t.Helper()
	s.one.keeps(s.a, s.key+":another") // so the sidecar hears recalls
	s.last = s.a.acquire(s.key, "")
	s.a.release(s.key, s.last)
	end = fault(grantedKeepable)
	s.t.Cleanup(func() { end() })
	s.asks(s.a, "")
	answers := make(chan answer, 1)
	go func() { answers <- s.a.read("PUT", lockPath(s.key)) }()
	keepable = true // if nobody sees it
	s.two.await("the grant", func() bool {
		seen := s.seen()
		held := seen.str("state") == "held"
		if held {
			keepable = seen.json["kept"] == true
		}
		return held || len(answers) > 0
	})
	if !keepable {
		end()
		s.told(<-answers)
	}
	return end, answers, keepable
}

// told takes the answer to the app of the keeper: granted, or unavailable.
func (s *keptScene) told(ans answer) {
	s.t.Helper()
	if ans.status != 200 {
		ans.want(503, "store_unavailable")
		return
	}
	s.releases(s.a, s.granted("a", ans))
}

// lateGrant lets the other app want the key before the answer with the grant comes. The recall may come earlier than the grant.
func (s *keptScene) lateGrant() (hit bool) {
	s.t.Helper()
	end, answered, keepable := s.comesAgain(s.net.delay)
	if !keepable {
		return false
	}
	waits := dial(s.t, s.two.socket)
	s.asks(waits, `{"wait_ms":-1}`)
	s.two.awaitQueue(s.key, 1)
	time.Sleep(lateBy) // so the recall is here first, if it comes alone
	hit = end()
	token, began := s.granted("a", <-answered), time.Now()
	s.two.await("the true holder", func() bool {
		seen := s.seen()
		return seen.str("state") == "held" && seen.json["kept"] == false
	})
	hit = hit && time.Since(began) < oldestGrant // otherwise it is shown only because the grant is old
	s.releases(s.a, token)
	began = time.Now()
	next := s.gets("b", waits)
	if took := time.Since(began); took > slowed(promptly) {
		s.t.Errorf("granted %s after the release", took)
	}
	s.releases(waits, next)
	return hit
}

// oldGrant lets the grant come when it is too old to be kept.
func (s *keptScene) oldGrant() (hit bool) {
	s.t.Helper()
	end, answered, keepable := s.comesAgain(s.net.delay)
	if !keepable {
		return false
	}
	time.Sleep(oldestGrant)
	hit = end()
	s.releases(s.a, s.granted("a", <-answered))
	if seen := s.seen(); seen.str("state") != "free" {
		s.t.Errorf("kept under an old grant: %s", seen.body)
	}
	return hit
}

// lostGrant lets the grant be lost. The keeper does not know that it has the key.
func (s *keptScene) lostGrant() (hit bool) {
	s.t.Helper()
	end, answered, keepable := s.comesAgain(s.net.lose)
	if !keepable {
		return false
	}
	hit = end()
	s.told(<-answered)
	began := time.Now()
	s.asks(s.b, `{"wait_ms":-1}`)
	token := s.gets("b", s.b)
	took := time.Since(began)
	if s.t.Logf("granted after %s", took.Round(time.Millisecond)); took > slowed(oldestGrant) {
		s.t.Errorf("want it within %s", slowed(oldestGrant))
	}
	s.releases(s.b, token)
	return hit
}

// TestTheKeeperIsCutOff: the sidecar that keeps a key does not reach its store any more. Another one gets the key when the lease is over, and an app that has
// taken the key has lost it before.
// Proves: promise 1, promise 2, promise 8, trap kept key
func TestTheKeeperIsCutOff(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	behindFaults(t, func(t *testing.T, far, near options, net faulty) {
		more := options{"KEEP": longestKeep, "POSTGRES_POLL_INTERVAL": noPoll}
		one, two := start(t, far.with(more).with(options{"TTL": ttl.String(), "RENEW_INTERVAL": "500ms"})), start(t, near.with(more).with(options{"TTL": "1h"}))
		session := openSession(t, one.socket, "")
		a, taker := dial(t, one.socket), dial(t, one.socket)
		one.keeps(a, "taken")
		last := map[string]int64{"taken": taker.acquire("taken", "", session.joins())}
		last["idle"] = one.keeps(a, "idle")
		net.cut()
		began := time.Now()
		var wants sync.WaitGroup
		for key, before := range last {
			wants.Go(func() {
				b := dial(t, two.socket)
				token := b.acquire(key, `{"wait_ms":-1}`)
				took := time.Since(began)
				if key == "taken" && len(session.events) == 0 {
					t.Errorf("two have the key: no loss was told before the other grant")
				}
				if t.Logf("%s: granted %s after the cut", key, took.Round(time.Millisecond)); token <= before || took > ttl+slowed(promptly) {
					t.Errorf("%s: token %d after %d; want it within %s", key, token, before, ttl+slowed(promptly))
				}
			})
		}
		wants.Wait()
		if e := session.want("lost"); e.data["key"] != "taken" || fmt.Sprint(e.data["token"]) != fmt.Sprint(last["taken"]) {
			t.Errorf("event %s %s", e.name, e.raw)
		}
	})
}
