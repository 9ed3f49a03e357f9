package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/internal/testing/apitest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// The problem of an error is as documented, whatever the error says of locks and holders.
func FuzzProblem(f *testing.F) {
	f.Add("job:1", "pod-a", []byte(`{"a":1}`), int64(3))
	f.Add("\xff\"\\", "\x00\n", []byte("\n[]"), int64(-1<<63))
	f.Fuzz(func(t *testing.T, key, text string, data []byte, n int64) {
		if key == "" || len(key) > MaxKey {
			return
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			data = nil // stores keep JSON
		}
		count := int(n & 0xffff)
		lock := store.Lock{Key: key, Held: n&1 == 0, Kept: n&4 == 0, QueueLength: count, Holder: store.Holder{
			Instance: text, Pod: text, Session: text, Owner: text, Traceparent: text, Data: data,
			AcquiredAt: time.UnixMicro(n % 1e15), HeldFor: time.Duration(n), ExpiresIn: time.Duration(-n),
		}}
		held := &lease.HeldError{Lock: lock, Cached: n&2 == 0}
		timeout := &lease.TimeoutError{Lock: lock, Position: 1 + count, Waited: time.Duration(n)}
		for _, c := range []struct {
			operation string
			err       error
		}{
			{"PUT /v1/locks/{key}", held},
			{"PUT /v1/locks/{key}", timeout},
			{"PUT /v1/locks/{key}", &lease.LimitError{What: text, Setting: key, Limit: count}},
			{"PUT /v1/locks/{key}", lease.ErrDraining},
			{"PUT /v1/locks/{key}", &store.Error{Op: key, Err: errors.New(text), Unknown: n&1 == 0}},
			{"POST /v1/locks", held},
			{"POST /v1/locks", timeout},
			{"POST /v1/locks", &lease.InvalidError{Of: "field keys", Text: text}},
			{"POST /v1/locks", lease.ErrSessionEnded},
			{"PATCH /v1/locks/{key}", &lease.NotHolderError{Key: key, Token: n, Reason: lease.ReasonReleased}},
			{"PATCH /v1/locks/{key}", &lease.InvalidError{Of: "field ttl_ms", Text: text}},
			{"DELETE /v1/locks/{key}", &lease.LostError{Lost: lease.Lost{Key: key, Token: n, Reason: lease.LostForced}}},
			{"DELETE /v1/locks/{key}", &lease.ReentryError{Key: key, Given: 1, Have: 1 + count}},
			{"DELETE /v1/locks/{key}", &lease.ReentryError{Key: key, Given: 2 + count, Have: 1 + count}},
			{"POST /v1/locks/{key}/stop", &lease.NotHeldError{Key: key}},
		} {
			p := ProblemOf(fmt.Errorf("wrapped: %w", c.err))
			method, path, _ := strings.Cut(c.operation, " ")
			if c.operation == "POST /v1/locks" {
				p = p.WithKey(c.err)
			}
			header := http.Header{"Content-Type": {"application/problem+json"}}
			if after := p.RetryAfter(); after != "" {
				header.Set("Retry-After", after)
			}
			apitest.Check(t, method, path, p.Status(), header, p.Append(nil))
		}
	})
}
