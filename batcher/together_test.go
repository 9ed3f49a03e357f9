package batcher

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Items that are handed in together go out together, in their order, behind earlier ones.
func TestSubmittedTogether(t *testing.T) {
	for _, inline := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var r recorder
			l := New(Config{Max: 3, Timeout: time.Hour, PerKey: 3, Inline: inline}, key, r.flush, nil)
			var a answers
			all := func(items ...string) (all []Submission[string, string]) {
				for _, item := range items {
					all = append(all, Submission[string, string]{Ctx: t.Context(), Item: item, Done: a.done})
				}
				return all
			}
			if err := l.SubmitAll(all("a1", "a2", "b1", "a3")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if inline {
				r.want(t, "[a1]", "[a2]", "[b1]", "[a3]")
			} else {
				r.want(t, "[a1 a2 b1]", "[a3]")
			}
			if len(a.got) != 4 {
				t.Errorf("%d answers", len(a.got))
			}
			stop(l)
			if err := l.SubmitAll(all("a4")); !errors.Is(err, ErrStopped) || len(a.got)+len(a.err) != 4 {
				t.Errorf("after the stop: %v, %d answers", err, len(a.got)+len(a.err))
			}
		})
	}
}
