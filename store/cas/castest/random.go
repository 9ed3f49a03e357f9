package castest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// world is what a server must contain after random calls.
type world struct {
	*rand.Rand
	records map[string]cas.Record
	given   map[string]int64 // the tokens of a key below this are given away
	living  []store.LeaseID
	dead    []store.LeaseID
}

// randomCalls: whatever the swaps of a call are, each is carried out if, and only if, its version is right and its leases live.
func randomCalls(t *testing.T, c *client) {
	const calls, keys, most, period = 48, 160, 150, 12
	seed := rand.Uint64()                                                                                          //nolint:gosec // of a test
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), records: map[string]cas.Record{}, given: map[string]int64{}} //nolint:gosec // of a test
	for range 20 {
		w.living, w.dead = append(w.living, c.open(ttl, "")), append(w.dead, c.open(ttl, ""))
	}
	c.must(c.Revoke(c.ctx, w.dead))
	w.dead = append(w.dead, uuid.New())
	reader := open(t, c.server, "reader")
	for call := range calls {
		var swaps []cas.Swap
		for _, k := range w.Perm(keys)[:1+w.IntN(1+w.IntN(most))] {
			swaps = append(swaps, w.swap(fmt.Sprintf("ns/%d\xff\x00/", k)))
		}
		switch call % period {
		case 0, 1: // much is wrong
			for i := range swaps {
				w.spoil(&swaps[i])
			}
		case period - 1: // after much that was right, one lease is dead
			s := &swaps[w.IntN(len(swaps))]
			s.Living = append(s.Living, w.dead[w.IntN(len(w.dead))])
		}
		var posted []cas.Letter
		for i, done := range c.swap(swaps...) {
			s := &swaps[i]
			if done.Done != w.right(s) {
				t.Fatalf("seed %d, call %d, swap %d of %d: done %t", seed, call, i, len(swaps), done.Done)
			}
			if !done.Done {
				w.same(t, done.Record, s.Key, fmt.Sprintf("seed %d, call %d, swap %d: the present record", seed, call, i))
				continue
			}
			if !s.Delete && done.Record.Base < w.given[s.Key] {
				t.Errorf("seed %d, call %d: tokens from %d on, those below %d are given away", seed, call, done.Record.Base, w.given[s.Key])
			}
			for _, l := range s.Letters[:min(1, len(s.Letters))] {
				l.Base = done.Record.Base
				posted = append(posted, l)
			}
			r := done.Record
			r.Data, r.Leases = s.Data, s.Leases
			if w.records[s.Key] = r; s.Delete {
				delete(w.records, s.Key)
			} else {
				w.given[s.Key] = r.Base + int64(r.Tokens)
			}
		}
		w.check(t, reader, swaps, fmt.Sprintf("seed %d, call %d", seed, call))
		for range posted {
			l := await.Receive(t, reader.letters, "a letter")
			if !slices.ContainsFunc(posted, func(p cas.Letter) bool {
				return p.Key == l.Key && bytes.Equal(p.Body, l.Body) && (p.Base == l.Base || w.records[p.Key].Version == 0)
			}) {
				t.Errorf("seed %d, call %d: a letter that nobody wrote: %.100v", seed, call, l)
			}
		}
	}
	if len(reader.letters) > 0 {
		t.Errorf("seed %d: %d letters too many", seed, len(reader.letters))
	}
}

// swap makes a swap of a record, which will be carried out.
func (w *world) swap(key string) cas.Swap {
	present := w.records[key]
	s := cas.Swap{Key: key, Version: present.Version, Data: w.bytes(), Tokens: w.IntN(3) * w.IntN(100)}
	s.Leases = append(append(s.Leases, w.some(w.living, 4)...), w.some(w.dead, 2)...)
	s.Living = w.some(w.living, 1+w.IntN(20)*w.IntN(2))
	if w.IntN(20) == 0 {
		s.Delete, s.Data, s.Leases, s.Tokens = present.Version != 0, nil, nil, 0
	}
	if w.IntN(3) == 0 {
		s.Letters = []cas.Letter{{To: "reader", Key: key, Body: w.bytes()}, {To: "nobody", Key: key, Body: []byte("x")}}
	}
	return s
}

// spoil makes something wrong with every second swap.
func (w *world) spoil(s *cas.Swap) {
	switch w.IntN(6) {
	case 0:
		s.Version++
	case 1:
		s.Version = 0
	case 2:
		s.Living = append(s.Living, w.dead[w.IntN(len(w.dead))])
	}
}

func (w *world) bytes() []byte {
	b := make([]byte, []int{1, 20, 200, 2000, 30_000}[w.IntN(5)*w.IntN(2)])
	for i := range b {
		b[i] = byte(w.Uint32())
	}
	return b
}

func (w *world) some(of []store.LeaseID, most int) (some []store.LeaseID) {
	for _, i := range w.Perm(len(of))[:min(len(of), w.IntN(most+1))] {
		some = append(some, of[i])
	}
	return some
}

func (w *world) right(s *cas.Swap) bool {
	return s.Version == w.records[s.Key].Version && !slices.ContainsFunc(s.Living, func(id store.LeaseID) bool { return slices.Contains(w.dead, id) })
}

// check compares records with those on the server.
func (w *world) check(t *testing.T, by *client, swaps []cas.Swap, when string) {
	t.Helper()
	names := make([]string, len(swaps))
	for i := range swaps {
		names[i] = swaps[i].Key
	}
	found, _, err := by.Load(by.ctx, names, nil)
	by.must(err)
	for i := range found {
		w.same(t, found[i], names[i], when)
	}
}

func (w *world) same(t *testing.T, r cas.Record, key, when string) {
	t.Helper()
	want := w.records[key]
	if r.Key != key || r.Version != want.Version || r.Base != want.Base || r.Tokens != want.Tokens || !bytes.Equal(r.Data, want.Data) || !slices.Equal(r.Leases, want.Leases) {
		t.Fatalf("%s: %.200v, want %.200v", when, r, want)
	}
	for i, id := range r.Leases {
		if r.States[i].Alive != slices.Contains(w.living, id) {
			t.Fatalf("%s: lease %d: %v", when, i, r.States[i])
		}
	}
}
