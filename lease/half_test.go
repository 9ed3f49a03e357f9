package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// namesakes are two requests for the key k whose attempt ids have the same first half. A hint
// contains only this half. A search for such a pair takes 1.7 billion hashes.
var namesakes = [2]uuid.UUID{
	uuid.MustParse("f54e4e5c-ebba-4efa-8000-000000000000"),
	uuid.MustParse("ed400fab-72de-48e5-8000-000000000000"),
}

// Requests whose attempt ids share the first half are checked, answered and counted separately.
func TestNamesakesWait(t *testing.T) {
	for _, how := range []string{"pushed", "hinted", "checked"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				other := r.another()
				token := other.lockTTL("k", time.Hour).Token
				var asked []*answer
				for _, id := range namesakes {
					asked = append(asked, r.ask(context.Background(), nil,
						types.Request{Key: "k", Wait: types.WaitForever, Bind: types.BindTTL, TTL: time.Hour, RequestID: id}))
					synctest.Wait()
				}
				all := r.m.acquirer.Queue.Waiting()
				if len(all) != 2 || all[0].Ref().ID == all[1].Ref().ID || store.HalfOf(all[0].Ref().ID) != store.HalfOf(all[1].Ref().ID) {
					t.Fatalf("%d attempts wait, want two with one half id", len(all))
				}
				if n, shown := r.m.acquirer.Queue.Length("k"), r.counts.sum(r.counts.waits); n != 2 || shown != 2 {
					t.Errorf("%d attempts wait, %d are shown", n, shown)
				}
				half := store.AttemptID{}
				id := all[0].Ref().ID
				copy(half[:], id[:len(store.HalfID{})])
				for i, a := range asked {
					before, limit := time.Now(), time.Duration(0)
					switch how {
					case "pushed":
						_, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", Token: token})
						r.must(err)
					case "hinted":
						r.handOver(other, "k", token)
						r.m.News(store.News{Attempt: store.Attempt{ID: half}})
						limit = attempt.HintPause
						synctest.Wait()
						if n := r.st.asked("Check"); i == 0 && n != 2 {
							t.Errorf("%d attempts were checked, but the hint is for both", n)
						}
					case "checked":
						r.handOver(other, "k", token)
						limit = r.m.acquirer.Queue.CheckInterval() * 3 / 2
					}
					g := a.granted(t)
					if took := time.Since(before); took > limit {
						t.Errorf("%d: granted %s after the hint", i, took)
					}
					synctest.Wait()
					if i == 0 && asked[1].isOver() {
						t.Fatalf("the other call ended, too: %+v, %v", asked[1].g, asked[1].err)
					}
					token = g.Token
				}
				_, err := other.m.Release(context.Background(), nil, types.ReleaseRequest{Key: "k", Token: token})
				r.must(err)
				r.nothingLeft()
			})
		})
	}
}
