package e2e

import (
	"fmt"
	"net/url"
	"slices"
	"sync"
	"testing"
)

// TestPagesWhileLocksChange: a client reads all pages of a list while other locks change. It sees
// every lock that is held all the time, once and in order.
func TestPagesWhileLocksChange(t *testing.T) {
	t.Parallel()
	stores(t, func(t *testing.T, o options) {
		s := start(t, o.with(options{"LOG_LEVEL": "info"}))
		holder := dial(t, s.socket)
		stay := keys("job", 300)
		for _, key := range stay {
			holder.acquire(key, "")
		}
		done := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 4 {
			a := dial(t, s.socket)
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					default:
						key := fmt.Sprintf("job:%05d:%d", n%300, i) // between the keys that stay held
						a.release(key, a.acquire(key, ""))
					}
				}
			})
		}
		looker := dial(t, s.socket)
		for range 5 {
			var seen []string
			query := url.Values{"scope": {"all"}, "type": {"job"}, "limit": {"17"}}
			for {
				page := looker.call("GET", "/v1/locks?"+query.Encode(), "").want(200, "")
				for _, l := range page.json["locks"].([]any) {
					seen = append(seen, l.(map[string]any)["key"].(string))
				}
				next, more := page.json["next_cursor"].(string)
				if !more {
					break
				}
				query.Set("cursor", next)
			}
			if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
				t.Fatal("the keys are unordered or repeated")
			}
			for _, key := range stay {
				if !slices.Contains(seen, key) {
					t.Fatalf("%s is held all the time but was not listed", key)
				}
			}
		}
		close(done)
		wg.Wait()
	})
}
