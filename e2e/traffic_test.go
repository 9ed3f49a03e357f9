package e2e

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// secretPart is part of keys, and must not be in metrics.
const secretPart = "customer-4711"

// traffic is apps that cause all metrics, also during outages.
type traffic struct {
	t        *testing.T
	one, two *sidecar
	// trace is the trace of all its calls.
	trace string
	end   atomic.Bool
	wg    sync.WaitGroup
}

// newTraffic leaves two locks for the first count of the fleet: one that is held and waited for,
// and one that has expired.
func newTraffic(t *testing.T, one, two *sidecar) *traffic {
	t.Helper()
	l := &traffic{t: t, one: one, two: two, trace: "0af7651916cd43dd8448eb211c80319c"}
	dial(t, one.socket).acquire("report:"+secretPart, "")
	dial(t, two.socket).send("PUT", lockPath("report:"+secretPart), `{"wait_ms":-1}`)
	one.awaitQueue("report:"+secretPart, 1)
	dial(t, one.socket).acquire("left:"+secretPart, `{"bind":"ttl","ttl_ms":500}`)
	one.await("the expiry of a lock", func() bool {
		return dial(t, one.socket).call("GET", lockPath("left:"+secretPart), "", "Cache-Control: no-cache").json["state"] == "free"
	})
	return l
}

func (l *traffic) start() {
	for i := range 2 {
		for _, s := range []*sidecar{l.one, l.two} {
			a := dial(l.t, s.socket)
			l.wg.Go(func() { l.work(a, i) })
		}
	}
	l.wg.Go(l.drop)
	l.t.Cleanup(l.stop)
}

func (l *traffic) stop() {
	l.end.Store(true)
	l.wg.Wait()
}

func (l *traffic) traced() string {
	return "traceparent: 00-" + l.trace + "-b7ad6b7169203331-01"
}

// call accepts all answers.
func (l *traffic) call(a *app, method, path, body string) answer {
	return a.call(method, path, body, l.traced())
}

// work competes for one lock, enters it twice, reads it, and is refused another.
func (l *traffic) work(a *app, id int) {
	const key = "job:" + secretPart
	entry := fmt.Sprintf(`{"wait_ms":2000,"owner":"o%d","reentrant":true}`, id)
	for !l.end.Load() {
		ans := l.call(a, "PUT", lockPath(key), entry)
		if ans.json["granted"] != true {
			time.Sleep(20 * time.Millisecond) // the client's pause before a retry
			continue
		}
		token := ans.int("token")
		l.call(a, "PUT", lockPath(key), entry)
		l.call(a, "GET", lockPath(key), "")
		l.call(a, "PATCH", lockPath(key), fmt.Sprintf(`{"token":%d}`, token))
		l.call(a, "PUT", lockPath("report:"+secretPart), "")
		for range 3 { // the last release is refused
			l.call(a, "DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), token), "")
		}
	}
}

// drop holds a lock for too long, and closes its connection with a lock without a type.
func (l *traffic) drop() {
	for i := 0; !l.end.Load(); i++ {
		a, err := tryDial(l.t, l.one.socket)
		if err != nil {
			l.t.Error(err)
			return
		}
		l.call(a, "PUT", lockPath(fmt.Sprintf("%s-%d", secretPart, i)), "")
		long := "long:" + secretPart
		ans := l.call(a, "PUT", lockPath(long), `{"wait_ms":1000,"max_hold_ms":100}`)
		for ans.json["granted"] == true && l.call(a, "GET", lockPath(long), "").json["mine"] == true {
			time.Sleep(10 * time.Millisecond) // the pause of a poll
		}
		a.close()
	}
}
