package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
)

// quiet is a sidecar with one key and without events, as one that may only read.
type quiet struct {
	fake
	lock atomic.Pointer[client.Lock]
}

func (q *quiet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/events"):
		w.WriteHeader(http.StatusNotImplemented)
		fmt.Fprint(w, `{"status":501,"code":"unsupported","detail":"it may only read"}`)
	case strings.HasSuffix(r.URL.Path, "/k"):
		_ = json.NewEncoder(w).Encode(q.lock.Load())
	default:
		q.fake.ServeHTTP(w, r)
	}
}

// Without events of the sidecar, the page of a key shows how its holders change, and why it shows no more.
func TestChangesOfHoldersWithoutEvents(t *testing.T) {
	q := &quiet{}
	set := func(sessions ...string) {
		l := &client.Lock{Key: "k", State: "held", LockMode: client.LockMode{Mode: client.ModeShared, HoldersCount: len(sessions)}}
		for i, session := range sessions {
			h := *heldLock("k", "web-0", session, 1).Holder
			h.AcquiredAt = time.Unix(int64(len(session)), 0)
			l.Holders = append(l.Holders, client.SharedHolder{Holder: h, Slot: &i})
			l.Holder = &l.Holders[0].Holder
		}
		q.lock.Store(l)
	}
	set("a")
	socket := serveOn(t, q)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&topic{name: keyName{key: "k"}}).watch(t.Context(), client.New(socket, "test"))
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("events are asked for again and again")
	}
	s := serve(t, socket, nil)
	next, _ := s.live("/live" + keyURL("k")[1:])
	awaitLive(next, "from time to time, because it may only read")
	set("a", "bb")
	doc := parse(t, awaitLive(next, "e-acquired"))
	if items := all(doc, "li"); len(items) != 1 || !strings.Contains(textOf(items[0]), "bb") {
		t.Errorf("events: %s", textOf(doc))
	}
	if strings.Contains(textOf(doc), "Token") {
		t.Errorf("a token that nobody knows is shown: %s", textOf(doc))
	}
	set("bb")
	doc = parse(t, awaitLive(next, "e-ended"))
	if items := all(doc, "li"); len(items) != 2 || !strings.Contains(textOf(items[0]), "ended") || strings.Contains(textOf(items[0]), "bb") {
		t.Errorf("events: %s", textOf(doc))
	}
	// More holders than a reading shows cannot be compared.
	l := *q.lock.Load()
	l.HoldersCount, l.Holders = 200, nil
	if holdersOf(&l) != nil {
		t.Error("unknown holders are compared")
	}
}
