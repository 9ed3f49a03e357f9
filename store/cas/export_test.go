package cas

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

// Encode writes a record for tests.
func Encode(rec *key.Record) []byte {
	useOffsets(rec)
	return encode(rec)
}

// Writable is a time as a record can contain it.
func Writable(t time.Time) time.Time { return writable(t) }

// noServer is a backend that nobody asks.
type noServer struct{ Backend }

func (noServer) Limits() Limits { return UsualLimits }

// Exercise runs each operation on a record.
func Exercise(rec *key.Record, alive bool) {
	s := NewSpace(nil, Config{}).open(noServer{}, store.Identity{Instance: "a"})
	data := encode(rec)
	states := map[store.LeaseID]LeaseState{}
	for _, l := range rec.Leases {
		states[l.ID] = LeaseState{Alive: alive, Left: time.Second}
	}
	id := rec.Holder.Attempt
	for _, w := range rec.Waiters {
		id = w.Attempt
	}
	ask := store.Ask{Attempt: store.Attempt{Key: "k", ID: uuid.New()}, TTL: time.Second, Shared: alive, Limit: 2}
	claim := store.Claim{Key: "k", Token: rec.Holder.Token, Outcome: store.Success}
	var answer store.Answer
	for _, do := range []func(*turn){
		func(t *turn) { t.op.Get(t.row) },
		func(t *turn) { t.op.Settle(t.row) },
		func(t *turn) { t.op.Acquire(t.row, &ask, nil, &answer) },
		func(t *turn) { t.op.Check(t.row, store.Attempt{Key: "k", ID: id}) },
		func(t *turn) { t.op.Cancel(t.row, store.Attempt{Key: "k", ID: id}) },
		func(t *turn) { t.op.Withdraw(t.row, store.Attempt{Key: "k", ID: id}) },
		func(t *turn) { t.op.Release(t.row, &claim) },
		func(t *turn) { t.op.Downgrade(t.row, &store.Change{Key: "k", Token: claim.Token, TTL: time.Second}) },
		func(t *turn) { t.op.Signal(t.row, store.Signal{Key: "k", Kind: store.Break}) },
		func(t *turn) { t.row.Waiting(store.QueuePlace{}, 9, t.op.Now) },
		func(t *turn) { t.row.Count(t.op.Now, func(string, store.Stat) {}) },
		func(t *turn) { t.row.HeldAt("a", t.op.Now) },
	} {
		j := &job{key: "k", name: "k", view: view{rec: &Record{Key: "k", Version: 1, Data: data}, fresh: true, states: states}}
		j.items = []item{{do: func(t *turn) bool { do(t); return true }}}
		if t, err := s.take(j); err == nil && t != nil {
			t.swap()
		}
	}
}

// LongestWay is how long an instance gives way for one letter at most, and AllWays how long a job does.
const LongestWay, AllWays = longestWay, allWays

// AskForWay is the letter of an instance whose swaps have lost so often.
func AskForWay(d time.Duration, lost int) []byte { return marshal([]note{{Way: d, Lost: lost}}) }

// Post sends letters that ask for way.
func Post(ctx context.Context, s *Store, letters []Letter) error {
	return s.requests.Post(ctx, letters)
}
