package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

type object = map[string]any

// lock is a lock as the API shows it. The holder is pod/session/owner.
func lock(key, holder string, held, ends time.Duration, queue int) object {
	names := strings.Split(holder+"//", "/")
	text := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return object{
		"key": key, "type": strings.Split(key, ":")[0], "state": "held", "mode": "exclusive", "holders_count": 1, "queue_length": queue,
		"holders": []object{}, "stopping": nil, "holder": object{
			"instance": names[0] + "-5f2c9a1e", "pod": names[0], "session": text(names[1]), "owner": text(names[2]),
			"acquired_at": "2026-01-02T15:04:05.678Z", "held_ms": held.Milliseconds(), "expires_in_ms": ends.Milliseconds(),
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "data": nil,
		},
	}
}

func waiter(key, caller string, position int, waited time.Duration) object {
	names := strings.Split(caller+"//", "/")
	return object{
		"key": key, "position": position, "pod": names[0], "session": names[1], "owner": nil, "mode": "exclusive", "limit": nil,
		"waiting_ms": waited.Milliseconds(), "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

func fixture() (locks, waiters []object) {
	locks = []object{
		lock("account:1001", "payments-0/transfer/thread-4", 92*time.Second, 12*time.Second, 1),
		lock("account:2002", "payments-1/transfer/thread-9", 88*time.Second, 12*time.Second, 1),
		lock("backup:nightly", "backup-28841/dump", 2*time.Hour+14*time.Minute, 12*time.Second, 2),
		lock("cache:prices", "web-7c9d-x2k4/refresh", 3*time.Second, 12*time.Second, 0),
		lock("deploy:prod", "ci-runner-3", 3*time.Minute+12*time.Second, 26*time.Minute+48*time.Second, 3),
		lock("import:customers/eu", "worker-2/import", 41*time.Minute, 12*time.Second, 0),
		lock("invoice:2026-01", "billing-0/close/month", 7*time.Minute+5*time.Second, 12*time.Second, 1),
		lock("leader:scheduler", "scheduler-1/leader", 9*24*time.Hour+4*time.Hour, 12*time.Second, 1),
		lock("mail:newsletter", "worker-1/mail", 58*time.Second, 12*time.Second, 0),
		lock("order:88213", "web-7c9d-m8q1/checkout", 400*time.Millisecond, 12*time.Second, 0),
		lock("report:weekly", "worker-3/report", 16*time.Minute, 12*time.Second, 0),
		lock("search:reindex", "search-0/reindex/shard-2", time.Hour+2*time.Minute, 12*time.Second, 0),
	}
	shared := locks[11]
	shared["mode"], shared["holders_count"], shared["limit"] = "shared", 3, 5
	locks[2]["stopping"] = object{"reason": "the database goes down at 3:00", "requested_at": "2026-01-02T17:15:00Z"}
	locks[2]["holder"].(object)["data"] = object{"job": "nightly", "step": "pg_dump", "rows": 120412}
	return locks, []object{
		waiter("account:1001", "payments-1/transfer/thread-9", 1, 81*time.Second), waiter("account:2002", "payments-0/transfer/thread-4", 1, 79*time.Second),
		waiter("backup:nightly", "backup-28842/dump", 1, 74*time.Minute), waiter("backup:nightly", "worker-2/vacuum", 2, 11*time.Minute),
		waiter("deploy:prod", "ci-runner-1/release", 1, 2*time.Minute), waiter("deploy:prod", "ci-runner-4/release", 2, 65*time.Second),
		waiter("deploy:prod", "ci-runner-2/release", 3, 12*time.Second), waiter("invoice:2026-01", "billing-1/close", 1, 4*time.Minute),
		waiter("leader:scheduler", "scheduler-0/leader", 1, 9*24*time.Hour),
	}
}

// made is a sidecar that always says the same, except that another namespace than its own gets a lock after the first look.
func made(t *testing.T, socket string, features ...string) {
	t.Helper()
	locks, waiters := fixture()
	for i, owner := range map[int]string{0: "thread-9", 1: "thread-4"} {
		waiters[i]["owner"] = owner
	}
	of := func(items []object, key string) (found []object) {
		for _, item := range items {
			if item["key"] == key {
				found = append(found, item)
			}
		}
		return found
	}
	var looks atomic.Int64 // at another namespace
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(r.URL.Path, "/")[2:]
		send := func(name string, items []object) {
			_ = json.NewEncoder(w).Encode(object{name: items, "next_cursor": nil})
		}
		switch {
		case r.URL.Path == "/v1":
			_ = json.NewEncoder(w).Encode(object{"namespace": "shop", "features": features})
		case r.URL.Path == "/v1/stats":
			_ = json.NewEncoder(w).Encode(object{"types": []object{{"namespace": "shop", "type": "order"}, {"namespace": "billing & co", "type": "invoice"}}})
		case r.URL.Path == "/v1/locks" && r.URL.Query().Has("namespace"):
			send("locks", locks[:min(2+looks.Add(1), 4)]) // more at the second look
		case r.URL.Path == "/v1/locks":
			send("locks", locks)
		case r.URL.Path == "/v1/waiters":
			send("waiters", waiters)
		case strings.HasSuffix(r.URL.Path, "/waiters"):
			send("waiters", of(waiters, parts[1]))
		case strings.HasSuffix(r.URL.Path, "/events"):
			fmt.Fprint(w, "event: state\ndata: {}\n\nevent: released\ndata: {\"token\":181,\"outcome\":\"success\",\"result\":{\"rows\":120398}}\n\n"+
				"event: acquired\ndata: {\"token\":182,\"holder\":{\"pod\":\"backup-28841\",\"session\":\"dump\"}}\n\n"+
				"event: stopping\ndata: {\"token\":182,\"reason\":\"the database goes down at 3:00\"}\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(of(locks, strings.Join(parts[1:], "/"))[0])
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// The pictures of docs/console.md, from data that never changes.
func TestPictures(t *testing.T) {
	w := newWorld(t)
	made(t, w.socket)
	w.startConsole("--allow-stop", "--allow-force", "--trace-url", "https://traces.example.com/{trace_id}")
	b := newBrowser(t)
	shoot := func(name, path, scheme, until string) {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}), chromedp.Navigate(w.url+path))
		b.await(until)
		var picture []byte
		// The times of events are now, so they are set. The first update of the page comes within a second.
		b.await(`document.querySelectorAll(".events time").forEach((e, n) => { e.textContent = ["17:15:00", "15:04:05", "15:04:05"][n] }),
			performance.now() - (window.since ??= performance.now()) > 1500`)
		b.do(chromedp.FullScreenshot(&picture, 100))
		size, err := png.DecodeConfig(bytes.NewReader(picture))
		if err != nil || size.Width != 1240 || len(picture) > 256<<10 {
			t.Errorf("%s: %d bytes, %d wide: %v", name, len(picture), size.Width, err)
		}
		if *pictures == "" {
			return
		}
		if err := os.MkdirAll(*pictures, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(*pictures, "console-"+name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	twelve := rows + " == 12"
	shoot("light", "/", "light", twelve)
	shoot("dark", "/", "dark", twelve)
	shoot("key", "/key?key=backup:nightly", "light", has(".events", "acquired"))
	shoot("circle", "/waits", "light", has(".circles", "1 circle"))
	b.quiet()
}
