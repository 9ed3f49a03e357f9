package lanes

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// amending is a store that notes its operations on held locks. It answers Holds, except for expired keys.
type amending struct {
	store.Store
	did     []string
	expired []string
	fails   string // this operation
}

var errRefused = errors.New("refused")

func (s *amending) answer(op string, keys []string) ([]store.Amended, error) {
	s.did = append(s.did, op+" "+strings.Join(keys, " "))
	if s.fails == op {
		return nil, errRefused
	}
	answers := make([]store.Amended, len(keys))
	for i, key := range keys {
		answers[i] = store.Amended{Status: store.Holds, Lock: store.Lock{Key: key}}
		if slices.Contains(s.expired, key) {
			answers[i] = store.Amended{Status: store.Expired}
		}
	}
	return answers, nil
}

func (s *amending) Amend(_ context.Context, changes []store.Change) ([]store.Amended, error) {
	return s.answer("amend", keysOf(changes))
}

func (s *amending) Downgrade(_ context.Context, changes []store.Change) ([]store.Amended, error) {
	return s.answer("downgrade", keysOf(changes))
}

func (s *amending) Adopt(_ context.Context, adoptions []store.Adoption) ([]store.Amended, error) {
	var changes []store.Change
	for _, a := range adoptions {
		changes = append(changes, a.Change)
	}
	return s.answer("adopt", keysOf(changes))
}

func keysOf(changes []store.Change) (keys []string) {
	for _, c := range changes {
		keys = append(keys, c.Key)
	}
	return keys
}

// TestAmendments: a batch of amendments becomes one operation of each kind. A lock that its sidecar handed on is adopted before it
// becomes a share. If an operation fails after another was carried out, the outcome of the batch is unknown.
// Proves: promise 9
func TestAmendments(t *testing.T) {
	amendment := func(key string, served, share bool) Amendment {
		a := Amend(store.Change{Key: key})
		if a.Share = share; served {
			a.Served = []store.AttemptID{uuid.New()}
		}
		return a
	}
	all := []Amendment{
		amendment("plain", false, false), amendment("both", true, true), amendment("share", false, true),
		amendment("served", true, false), amendment("lost", true, true),
	}
	for name, c := range map[string]struct {
		fails   string
		batch   []Amendment
		did     []string
		unknown bool
	}{
		"all kinds":          {"", all, []string{"adopt both served lost", "downgrade both share", "amend plain"}, false},
		"one kind":           {"", all[:1], []string{"amend plain"}, false},
		"the first fails":    {"adopt", all, []string{"adopt both served lost"}, false},
		"the only one fails": {"downgrade", all[2:3], []string{"downgrade share"}, false},
		"a later one fails":  {"downgrade", all, []string{"adopt both served lost", "downgrade both share"}, true},
		"the last fails":     {"amend", all, []string{"adopt both served lost", "downgrade both share", "amend plain"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			st := &amending{fails: c.fails, expired: []string{"lost"}}
			answers, err := amender(st)(t.Context(), c.batch)
			if !slices.Equal(st.did, c.did) {
				t.Errorf("did %q, want %q", st.did, c.did)
			}
			if errors.Is(err, errRefused) != (c.fails != "") || store.OutcomeUnknown(err) != c.unknown {
				t.Errorf("error %v", err)
			}
			for i, a := range c.batch {
				if want := a.Key != "lost"; err == nil && (answers[i].Status == store.Holds) != want || err == nil && want && answers[i].Lock.Key != a.Key {
					t.Errorf("%s is answered %+v", a.Key, answers[i])
				}
			}
		})
	}
}
