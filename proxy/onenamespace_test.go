package proxy

import (
	"errors"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
)

// Where clients must not trust each other, no answer says what an error of the store names: hosts, users, databases.
// Proves: threat other pod
func TestErrorsOfTheStoreAreMasked(t *testing.T) {
	f := start(t, func(c *Config) { c.OneNamespace = true })
	away := &store.Error{Op: "Acquire", Err: errors.New("failed to connect to user=locks at db.example.com")}
	f.locks.hook = func(string, string) error { return away }
	var ready error = away
	f.locks.ready.Store(&ready)
	for _, call := range [][3]string{
		{"PUT", "/v1/locks/a", ""},
		{"POST", "/v1/locks", `{"keys":["a"]}`},
		{"DELETE", "/v1/locks/a?token=1", ""},
		{"POST", "/v1/locks/a/release", `{"token":1}`},
		{"PATCH", "/v1/locks/a", `{"token":1}`},
		{"GET", "/v1/locks/a", ""},
		{"GET", "/v1/locks", ""},
		{"GET", "/v1/locks/a/waiters", ""},
		{"POST", "/v1/locks/a/stop", ""},
		{"GET", "/v1/locks/a/events", ""},
		{"GET", "/readyz", ""},
	} {
		a := f.dial().do(call[0], call[1], call[2])
		if a.StatusCode != 503 || strings.Contains(a.text, "example") || !strings.Contains(a.text, "the log of the lock server says why") {
			t.Errorf("%s %s: %d %s", call[0], call[1], a.StatusCode, a.text)
		}
	}
}

// Servers that share room have no more connections together than it has, and one of them no more than its own limit.
// Proves: threat flood
func TestSharedRoom(t *testing.T) {
	room := NewRoom(3)
	with := func(c *Config) { c.Room, c.MaxConns = room, 2 }
	one, two := start(t, with), start(t, with)
	var open []*client
	for i, c := range []struct {
		f    *fixture
		says string
	}{
		{one, ""},
		{one, ""},
		{one, "too many connections: 2 are open"}, // its own limit
		{two, ""},
		{two, "all pods of the node together may have no more"},
	} {
		got := c.f.dial()
		if c.says != "" {
			a := got.do("GET", "/v1", "")
			a.want(t, 429, "limit")
			a.detail(t, c.says)
			continue
		}
		got.do("GET", "/v1", "").want(t, 200, "")
		open = append(open, got)
		if room.Used() != len(open) {
			t.Errorf("%d: %d places are taken", i, room.Used())
		}
	}
	_ = open[0].Close()
	await.Until(t, "a place is free", func() bool { return room.Used() == 2 })
	two.dial().do("GET", "/v1", "").want(t, 200, "")
	one.Stop()
	two.Stop()
	if room.Used() != 0 {
		t.Errorf("%d places are taken by nobody", room.Used())
	}
}
