package mysql_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/mysql"
)

// rig is a started backend, with what it was told.
type rig struct {
	*mysql.Backend
	t       *testing.T
	ctx     context.Context
	letters chan cas.Letter
	lost    chan struct{}
}

// start starts an instance, whether a server can be reached or not.
func (s *server) start(instance string) *rig {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*await.Patience)
	s.t.Cleanup(cancel)
	r := &rig{Backend: s.Open(instance).(expecting).Backend, t: s.t, ctx: ctx, letters: make(chan cas.Letter, 1000), lost: make(chan struct{}, 100)}
	s.t.Cleanup(r.Stop)
	r.Expect(true, true)
	if err := r.Start(ctx, func(l cas.Letter) { r.letters <- l }, func() { r.lost <- struct{}{} }); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// ready starts an instance and waits until it is ready.
func (s *server) ready(instance string) *rig {
	s.t.Helper()
	r := s.start(instance)
	r.becomesReady()
	return r
}

func (r *rig) becomesReady() {
	r.t.Helper()
	await.Until(r.t, "the backend is ready", func() bool { return r.Ready() == nil })
}

// refuses waits until the backend is not ready for a reason with these words.
func (r *rig) refuses(words string) {
	r.t.Helper()
	var why error
	for end := time.Now().Add(await.Patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if why = r.Ready(); why != nil && strings.Contains(why.Error(), words) {
			return
		}
	}
	r.t.Fatalf("not ready because of %v, want a reason with %q", why, words)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) swap(s cas.Swap) (cas.Swapped, error) {
	results, err := r.Swap(r.ctx, []cas.Swap{s})
	if err != nil {
		return cas.Swapped{}, err
	}
	return results[0], nil
}

func (r *rig) done(s cas.Swap) cas.Record {
	r.t.Helper()
	result, err := r.swap(s)
	if err != nil || !result.Done {
		r.t.Fatalf("%+v: %+v, %v", s, result, err)
	}
	return result.Record
}

func (r *rig) load(key string) cas.Record {
	r.t.Helper()
	records, _, err := r.Load(r.ctx, []string{key}, nil)
	r.must(err)
	return records[0]
}

// write sends a letter with a number to an instance.
func (r *rig) write(to string, number byte) {
	r.t.Helper()
	key := uuid.NewString()
	r.done(cas.Swap{Key: key, Data: []byte("x"), Letters: []cas.Letter{{To: to, Key: key, Body: []byte{number}}}})
}

// reads waits for the letter with a number.
func (r *rig) reads(number byte) {
	r.t.Helper()
	if l := await.Receive(r.t, r.letters, "a letter"); l.Body[0] != number {
		r.t.Fatalf("letter %d came, want %d", l.Body[0], number)
	}
}

func (r *rig) open(ttl time.Duration) store.LeaseID {
	r.t.Helper()
	id := uuid.New()
	_, err := r.OpenLeases(r.ctx, []cas.NewLease{{NewLease: store.NewLease{ID: id, TTL: ttl}, Instance: "one"}})
	r.must(err)
	return id
}

// keeps renews a lease once.
func (r *rig) keeps(id store.LeaseID) bool {
	kept, _, err := r.Renew(r.ctx, []store.LeaseID{id})
	return err == nil && len(kept) == 1
}

// logged is a log that tests read.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) has(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), words)
}

func (s *server) logged() *logged {
	l := &logged{}
	s.logger = slog.New(slog.NewTextHandler(l, nil))
	return l
}
