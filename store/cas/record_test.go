package cas_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/key"
)

// full returns a record with everything in it.
func full() *key.Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	reason := "why"
	asked := key.Asked{
		Attempt: uuid.New(), TTL: time.Second, MinHold: time.Minute, Skip: true, Shared: true, Limit: 3,
		Session: "s", Owner: "o", Traceparent: "t", Data: []byte(`{}`),
	}
	holder := func(token int64) key.RecordHolder {
		return key.RecordHolder{RecordAsker: key.RecordAsker{By: 1, Lease: 2}, Asked: asked, Hold: 1, Grant: key.Grant{
			Token: token, Acquired: at, HandedBy: "h", Stopping: &store.Stopping{Reason: &reason, At: at}, Repeated: true, Slot: 1,
		}}
	}
	waiter := key.RecordWaiter{RecordAsker: key.RecordAsker{By: 2, Lease: 1}, Asked: asked, Order: 7, Since: 8, Result: 1}
	return &key.Record{
		Instances: []key.Instance{{Name: "a", Pod: "p"}, {Name: "b"}},
		Leases:    []key.RecordLease{{ID: uuid.New(), By: 1, TTL: time.Minute}, {ID: uuid.New(), Dead: true}},
		Holder:    key.RecordHolder{RecordAsker: key.RecordAsker{Lease: key.Ended}, Grant: key.Grant{Token: 9, Released: true}},
		Shares:    []key.RecordHolder{holder(8), holder(9)}, Limit: 3, Freed: at.UnixMicro(), Last: 7, Writer: "w",
		Results: [][]byte{[]byte("1")}, Waiters: []key.RecordWaiter{waiter}, Skipped: []key.RecordWaiter{waiter}, Watchers: []key.RecordAsker{{By: 1, Lease: 1}},
		Signals: []key.RecordSignal{{Lease: 1, Signal: store.Signal{ID: 1, Kind: store.Stop, Key: "k", Token: 9, Reason: &reason, At: at}}},
	}
}

func TestRecordsAreReadAsWritten(t *testing.T) {
	data := cas.Encode(full())
	rec, err := cas.Decode(&cas.Record{Key: "k", Version: 1, Base: 1 << 40, Data: data})
	if err != nil {
		t.Fatal(err)
	}
	if again := cas.Encode(rec); !bytes.Equal(again, data) {
		t.Errorf("written again:\n%x\n%x", data, again)
	}
	if rec.Shares[1].Grant.Acquired != full().Shares[1].Acquired || *rec.Signals[0].Signal.Reason != "why" {
		t.Errorf("read %+v", rec)
	}
}

// TestRecordsAreSmall: a record is read and written with each change of its key.
func TestRecordsAreSmall(t *testing.T) {
	rec := full()
	rec.Waiters = nil
	before := len(cas.Encode(rec))
	for i := range 500 {
		rec.Waiters = append(rec.Waiters, key.RecordWaiter{
			RecordAsker: key.RecordAsker{By: 1, Lease: 1}, Order: int64(i), Since: time.Now().UnixMicro(),
			Asked: key.Asked{Attempt: uuid.New(), Session: "0123456789abcdef", Traceparent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"},
		})
	}
	if each := (len(cas.Encode(rec)) - before) / 500; each > 150 {
		t.Errorf("a waiter needs %d bytes", each)
	}
}

func TestDamagedNumbersAreFound(t *testing.T) {
	damages := map[string]func(*key.Record){
		"a result that is missing":     func(r *key.Record) { r.Skipped[0].Result = 2 },
		"a lease of no instance":       func(r *key.Record) { r.Leases[0].By = 3 },
		"a holder of no lease":         func(r *key.Record) { r.Holder.Lease = 3 },
		"a holder of no instance":      func(r *key.Record) { r.Holder.Lease, r.Holder.By = 1, 0 },
		"a negative lease":             func(r *key.Record) { r.Holder.Lease = -2 },
		"a hold of no lease":           func(r *key.Record) { r.Shares[0].Hold = 3 },
		"a share without a lease":      func(r *key.Record) { r.Shares[0].Lease = 0 },
		"a grant without a lease":      func(r *key.Record) { r.Holder.Lease, r.Holder.Released = 0, false },
		"a negative slot":              func(r *key.Record) { r.Shares[0].Slot = -1 },
		"tokens that do not grow":      func(r *key.Record) { r.Shares[1].Token = 8 },
		"a waiter without an instance": func(r *key.Record) { r.Waiters[0].By = 0 },
		"a waiter without a lease":     func(r *key.Record) { r.Waiters[0].Lease = key.Ended },
		"waiters out of order":         func(r *key.Record) { r.Waiters = append(r.Waiters, r.Waiters[0]) },
		"a waiter without a holder":    func(r *key.Record) { r.Shares, r.Holder = nil, key.RecordHolder{} },
		"a watcher without a lease":    func(r *key.Record) { r.Watchers[0].Lease = 0 },
		"a signal without a lease":     func(r *key.Record) { r.Signals[0].Lease = 0 },
	}
	for name, damage := range damages {
		rec := full()
		damage(rec)
		if _, err := cas.Decode(&cas.Record{Key: "the key", Version: 1, Data: cas.Encode(rec)}); err == nil {
			t.Errorf("%s was not found", name)
		}
	}
}

// FuzzDecode: data that cannot be read is an error, and data that can be read does not harm the machine.
func FuzzDecode(f *testing.F) {
	f.Add(cas.Encode(full()), int64(1))
	f.Add(cas.Encode(&key.Record{}), int64(math.MaxInt64))
	f.Add([]byte{1, 0xa0}, int64(0))
	f.Fuzz(func(t *testing.T, data []byte, base int64) {
		rec, err := cas.Decode(&cas.Record{Key: "k", Version: 1, Base: base, Data: data})
		if err != nil {
			if !strings.Contains(err.Error(), `"k"`) {
				t.Fatalf("the error does not name the key: %v", err)
			}
			return
		}
		for _, alive := range []bool{true, false} {
			cas.Exercise(rec, alive)
		}
	})
}

// A clock far in the future makes no record that nobody can read.
func TestARecordOfTheFarFutureIsReadable(t *testing.T) {
	for _, year := range []int{2026, 9999, 10_000, 200_000} {
		now := time.Date(year, time.March, 4, 5, 6, 7, 8000, time.UTC)
		rec := &key.Record{}
		rec.Holder.Acquired = cas.Writable(now)
		rec.Holder.Released = true
		got, err := cas.Decode(&cas.Record{Key: "k", Data: cas.Encode(rec)})
		if err != nil {
			t.Errorf("the year %d: %v", year, err)
		} else if year < 9999 && !got.Holder.Acquired.Equal(now) {
			t.Errorf("%s became %s", now, got.Holder.Acquired)
		}
	}
}
