package castest

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
)

// Rig is a started backend in the tests of its package, with what it was told. Its methods fail the test after an error.
type Rig struct {
	T       *testing.T
	Ctx     context.Context
	Letters chan cas.Letter
	Lost    chan struct{}
	backend cas.Backend
}

// Start starts a backend, whether a server can be reached or not. The end of the test stops it.
func Start(t *testing.T, b cas.Backend) *Rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*await.Patience)
	t.Cleanup(cancel)
	r := &Rig{T: t, Ctx: ctx, Letters: make(chan cas.Letter, 1000), Lost: make(chan struct{}, 100), backend: b}
	t.Cleanup(b.Stop)
	if err := b.Start(ctx, func(l cas.Letter) { r.Letters <- l }, func() { r.Lost <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	return r
}

// BecomesReady waits until the backend is ready.
func (r *Rig) BecomesReady() {
	r.T.Helper()
	await.Until(r.T, "the backend is ready", func() bool { return r.backend.Ready() == nil })
}

// Refuses waits until the backend is not ready for a reason with these words.
func (r *Rig) Refuses(words string) {
	r.T.Helper()
	await.Until(r.T, "the backend is not ready: "+words, func() bool {
		why := r.backend.Ready()
		return why != nil && strings.Contains(why.Error(), words)
	})
}

// Must fails the test after an error.
func (r *Rig) Must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// SwapOne swaps one record.
func (r *Rig) SwapOne(s cas.Swap) (cas.Swapped, error) {
	results, err := r.backend.Swap(r.Ctx, []cas.Swap{s})
	if err != nil {
		return cas.Swapped{}, err
	}
	return results[0], nil
}

// Done swaps one record, which must succeed.
func (r *Rig) Done(s cas.Swap) cas.Record {
	r.T.Helper()
	result, err := r.SwapOne(s)
	if err != nil || !result.Done {
		r.T.Fatalf("%+v: %+v, %v", s, result, err)
	}
	return result.Record
}

// LoadOne reads one record.
func (r *Rig) LoadOne(key string) cas.Record {
	r.T.Helper()
	records, _, err := r.backend.Load(r.Ctx, []string{key}, nil)
	r.Must(err)
	return records[0]
}

// Write sends a letter with a number to an instance.
func (r *Rig) Write(to string, number byte) {
	r.T.Helper()
	key := uuid.NewString()
	r.Done(cas.Swap{Key: key, Data: []byte("x"), Letters: []cas.Letter{{To: to, Key: key, Body: []byte{number}}}})
}

// Reads waits for the letter with a number.
func (r *Rig) Reads(number byte) {
	r.T.Helper()
	if l := await.Receive(r.T, r.Letters, "a letter"); l.Body[0] != number {
		r.T.Fatalf("letter %d came, want %d", l.Body[0], number)
	}
}

// OpenLease opens a lease of the instance "one".
func (r *Rig) OpenLease(ttl time.Duration) store.LeaseID {
	r.T.Helper()
	id := uuid.New()
	_, err := r.backend.OpenLeases(r.Ctx, []cas.NewLease{{NewLease: store.NewLease{ID: id, TTL: ttl}, Instance: "one"}})
	r.Must(err)
	return id
}

// Keeps renews a lease once.
func (r *Rig) Keeps(id store.LeaseID) bool {
	renewed, _, err := r.backend.Renew(r.Ctx, []store.LeaseID{id})
	return err == nil && len(renewed) == 1
}

// Log is a log that tests read.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Logger returns a logger that writes into the log.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Write implements [io.Writer].
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// Has reports whether the log contains these words.
func (l *Log) Has(words string) bool {
	return strings.Contains(l.String(), words)
}

// String returns the log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
