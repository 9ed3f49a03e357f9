package cli

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// waits is a call as the API shows it.
func waits(key, pod, session string, age time.Duration) client.Waiter {
	return client.Waiter{Key: key, Position: 1, Pod: pod, Session: &session, Mode: "exclusive", WaitingMS: age.Milliseconds()}
}

// circle makes two sessions wait for each other, of which one waits since a time.
func circle(f *fakeSidecar, since time.Duration) {
	f.holds(listedLock("a", "web-0", "s1", time.Hour, time.Second, 1), listedLock("b", "web-1", "s2", time.Hour, time.Second, 1))
	f.lets(waits("a", "web-1", "s2", since), waits("b", "web-0", "s1", time.Minute))
}

func TestDeadlocksTellsACircle(t *testing.T) {
	f := newFakeSidecar(t)
	circle(f, time.Minute)
	out, err := command("--socket", f.socket, "deadlocks")
	const want = `deadlock of 2:
  session s2 of pod web-1 holds b (for 1h0m0s) and waits for a (for 1m0s)
  session s1 of pod web-0 holds a (for 1h0m0s) and waits for b (for 1m0s)
`
	if exitcode.Of(err) != 1 || out != want {
		t.Errorf("%v\n%s", err, out)
	}
	if n := len(f.asked()); n != 4 {
		t.Errorf("%d questions; two looks have four", n)
	}
}

// A call that is younger than the second look may have begun after another one of the circle had ended.
func TestDeadlocksTellsOnlyWhatASecondLookFinds(t *testing.T) {
	f := newFakeSidecar(t)
	circle(f, 0)
	out, err := command("--socket", f.socket, "deadlocks")
	if err != nil || !strings.HasPrefix(out, "no deadlock") || len(f.asked()) != 4 {
		t.Errorf("%v, %d questions: %s", err, len(f.asked()), out)
	}
}

// Who is shown with a kept lock has perhaps released it, so it holds nobody up.
func TestAKeptLockIsInNoCircle(t *testing.T) {
	f := newFakeSidecar(t)
	circle(f, time.Minute)
	f.mu.Lock()
	f.locks[0].Kept = true
	f.mu.Unlock()
	if out, err := command("--socket", f.socket, "deadlocks"); err != nil || !strings.HasPrefix(out, "no deadlock") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestDeadlocksReadsPages(t *testing.T) {
	f := newFakeSidecar(t)
	const calls = 10_000
	line := make([]client.Waiter, calls)
	for i := range line {
		line[i] = waits("a", "web-1", fmt.Sprint("s", i), time.Minute)
	}
	f.lets(line...)
	f.holds(listedLock("a", "web-0", "s", time.Hour, time.Second, calls))
	out, err := command("--socket", f.socket, "deadlocks", "--prefix", "a b")
	if err != nil || out != "no deadlock: 10000 calls wait for 1 keys, but not in a circle\n" {
		t.Errorf("%v, %s", err, out)
	}
	asked := f.asked()
	if len(asked) != calls/client.PageSize+1 { // and one of locks
		t.Errorf("%d questions", len(asked))
	}
	for _, query := range asked {
		if query.Get("limit") != "1000" || query.Get("prefix") != "a b" {
			t.Errorf("asked for %s", query.Encode())
		}
	}
	// Its memory is bounded.
	full := contention{calls: maxWaitingCalls}
	if err := full.readWaiters(&client.Look{}, &client.Page{Waiters: pageOf(t, f, "/v1/waiters").Waiters}); exitcode.Of(err) != exitcode.Usage {
		t.Error(err)
	}
}

func pageOf(t *testing.T, f *fakeSidecar, path string) (first client.Page) {
	t.Helper()
	_, err := client.New(f.socket, "test").Pages(path, url.Values{}, 1, func(p *client.Page) error { first = *p; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return first
}

func TestDeadlocksWithoutWaiters(t *testing.T) {
	f := newFakeSidecar(t)
	out, err := command("--socket", f.socket, "deadlocks")
	if err != nil || !strings.HasPrefix(out, "no deadlock: 0 calls") || len(f.asked()) != 1 {
		t.Errorf("%v, %d questions: %s", err, len(f.asked()), out)
	}
	out, err = command("--socket", f.socket, "deadlocks", "--json")
	if err != nil || out != `{"waiting_calls":0,"keys":0,"deadlocks":[]}`+"\n" {
		t.Errorf("%v: %s", err, out)
	}
	f.refuses(500)
	if _, err := command("--socket", f.socket, "deadlocks"); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
}

// A real sidecar has a reader behind a writer, a semaphore, and a call of no session.
func TestDeadlocksOfASidecar(t *testing.T) {
	in := serve(t, map[string]string{"POD": "web-0"})
	a, b, writer := sidecartest.Dial(t, in.Socket), sidecartest.Dial(t, in.Socket), sidecartest.Dial(t, in.Socket)
	send := func(app *sidecartest.App, key, body string, queue int) {
		t.Helper()
		if err := app.Send("PUT", client.LockPath(key), body); err != nil {
			t.Fatal(err)
		}
		awaitQueue(t, in, key, queue)
	}
	a.Wants(200, "PUT", client.LockPath("doc"), `{"mode":"shared"}`)
	b.Wants(200, "PUT", client.LockPath("sem"), `{"mode":"shared","limit":1,"owner":"o"}`)
	send(writer, "doc", `{"bind":"ttl","wait_ms":-1}`, 1)
	send(a, "sem", `{"mode":"shared","limit":1,"wait_ms":-1}`, 1)
	if out, err := in.command("deadlocks"); err != nil || out != "no deadlock: 2 calls wait for 2 keys, but not in a circle\n" {
		t.Errorf("%v, %s", err, out)
	}
	send(b, "doc", `{"mode":"shared","wait_ms":-1,"owner":"o"}`, 2)
	out, err := in.command("deadlocks")
	want := regexp.MustCompile(`^deadlock of 2:
  owner o of session \S+ of pod web-0 shares sem \(for \S+\) and waits for doc \(for \S+\), behind an exclusive call of no session[\n]  session \S+ of pod web-0 shares doc \(for \S+\) and waits for sem \(for \S+\); all 1 permits are held by sessions that also wait
$`)
	if exitcode.Of(err) != 1 || !want.MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = in.command("deadlocks", "--json")
	out = regexp.MustCompile(`(_ms":)\d+|("session":)"[^"]+"`).ReplaceAllString(out, "${1}${2}_")
	const document = `{"waiting_calls":3,"keys":2,"deadlocks":[[` +
		`{"pod":"web-0","session":_,"owner":"o","holds":{"key":"sem","mode":"shared","held_ms":_},` +
		`"waits_for":{"key":"doc","mode":"shared","limit":null,"waiting_ms":_,"behind":{"pod":null,"session":null,"owner":null}}},` +
		`{"pod":"web-0","session":_,"owner":null,"holds":{"key":"doc","mode":"shared","held_ms":_},` +
		`"waits_for":{"key":"sem","mode":"shared","limit":1,"waiting_ms":_,"behind":null}}]]}` + "\n"
	if exitcode.Of(err) != 1 || out != document {
		t.Errorf("%v\n%s", err, out)
	}
}
