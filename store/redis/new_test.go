package redis_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/redis"
)

// TestAServerIsMarkedAsNew: it grants at once, and is not marked again.
// Proves: rule quiet time
func TestAServerIsMarkedAsNew(t *testing.T) {
	t.Parallel()
	s := at(t, redistest.Start(t))
	s.ttl = time.Hour
	if err := redis.MarkNew(t.Context(), s.url); err != nil {
		t.Fatal(err)
	}
	r := s.ready("one")
	r.OpenLease(time.Minute)
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
	r.Stop()
	if err := redis.MarkNew(t.Context(), s.url); !redis.IsNotNew(err) {
		t.Errorf("a used server is marked: %v", err)
	}
}

// TestANewServerIsNamed: the log says that a server is empty, and what spares the quiet time, but not if there is none.
// Proves: rule quiet time
func TestANewServerIsNamed(t *testing.T) {
	t.Parallel()
	const line = "`locksidecar migrate --new` spares this"
	for name, test := range map[string]struct {
		quick, marked, named bool
	}{"new": {named: true}, "quick": {quick: true}, "marked": {marked: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := at(t, redistest.Start(t))
			s.ttl, s.quick = time.Hour, test.quick
			if test.marked {
				if err := redis.MarkNew(t.Context(), s.url); err != nil {
					t.Fatal(err)
				}
			}
			log := s.logged()
			r := s.ready("one")
			if log.Has(line) != test.named {
				t.Errorf("the log:\n%s", log)
			}
			r.OpenLease(time.Minute)
			log = s.logged()
			s.ready("two")
			if log.Has(line) {
				t.Errorf("the server is in use, and the log:\n%s", log)
			}
		})
	}
}

// TestAServerThatIsNotNew: what may have forgotten grants is not marked, and has its quiet time.
// Proves: rule quiet time
func TestAServerThatIsNotNew(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, s *server) {
		t.Helper()
		if err := redis.MarkNew(t.Context(), s.url); !redis.IsNotNew(err) {
			t.Errorf("it is marked as new: %v", err)
		}
		s.ttl = time.Hour
		answer, err := s.ready("next").SwapOne(cas.Swap{Key: "ns/next", Data: []byte("x"), Tokens: 1})
		if err != nil || answer.Done || answer.Quiet < time.Minute {
			t.Errorf("a grant afterwards: %+v, %v", answer, err)
		}
	}
	t.Run("its data was deleted", func(t *testing.T) {
		t.Parallel()
		d := redistest.Start(t)
		s := at(t, d)
		r := s.ready("one")
		r.OpenLease(time.Minute)
		r.Stop()
		d.Do(t, "FLUSHALL")
		refused(t, s)
	})
	t.Run("it has restarted, and a sidecar is connected", func(t *testing.T) {
		t.Parallel()
		d := redistest.Start(t)
		s := at(t, d)
		s.ready("one").OpenLease(time.Minute)
		d.Restart(t)
		await.Until(t, "the sidecar listens again", func() bool {
			found, _ := d.Do(t, "PUBSUB", "CHANNELS").([]any)
			return len(found) > 0
		})
		refused(t, s)
	})
	t.Run("it was promoted", func(t *testing.T) {
		t.Parallel()
		a, b := redistest.Start(t), redistest.Start(t)
		b.Follow(t, a.Address)
		b.CaughtUp(t, a)
		b.Forget(t)
		s := at(t, a)
		r := s.ready("one")
		r.OpenLease(time.Minute)
		r.Stop()
		b.Promote(t)
		refused(t, at(t, b))
	})
}

// TestAnOldSidecarOfAMarkedServer: it knows what the server has lost. So the server was not new, and the quiet time begins.
// Proves: rule quiet time
func TestAnOldSidecarOfAMarkedServer(t *testing.T) {
	t.Parallel()
	d := redistest.Start(t)
	s := at(t, d)
	old := s.ready("old")
	old.OpenLease(time.Minute)
	held := old.LoadOne("ns/key").History
	d.Restart(t)
	_ = redis.MarkNew(t.Context(), s.url) // loads the functions, and may be refused, because the old one listens
	d.Do(t, "FCALL", redis.Function("fresh"), 2, redis.Prefix()+"meta", redis.Prefix()+"absent", "mark")
	next := s.ready("next")
	next.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
	if now := old.LoadOne("ns/key"); now.History == held {
		t.Error("the old one does not see another history")
	}
	answer, err := next.SwapOne(cas.Swap{Key: "ns/other", Data: []byte("x"), Tokens: 1})
	if err != nil || answer.Done || answer.Quiet < 30*time.Second {
		t.Errorf("a grant after the old sidecar has come: %+v, %v", answer, err)
	}
	if next.Quiet() < 30*time.Second {
		t.Errorf("it knows of a quiet time of %s", next.Quiet())
	}
}
