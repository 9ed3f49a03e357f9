package overload

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// TestTally: grants and proper refusals are honest; anything else is wrong.
func TestTally(t *testing.T) {
	for name, c := range map[string]struct {
		answer wire.Answer
		err    error
		honest bool
	}{
		"granted":                 {wire.Answer{Status: 200}, nil, true},
		"a limit":                 {wire.Answer{Status: 429, Code: "limit", RetryAfter: "1"}, nil, true},
		"a store that is away":    {wire.Answer{Status: 503, Code: "store_unavailable", RetryAfter: "1"}, nil, true},
		"closed":                  {wire.Answer{}, io.EOF, true},
		"a limit without a time":  {wire.Answer{Status: 429, Code: "limit"}, nil, false},
		"a limit without a code":  {wire.Answer{Status: 429, RetryAfter: "1"}, nil, false},
		"a bug":                   {wire.Answer{Status: 500, Code: "internal"}, nil, false},
		"no answer within a time": {wire.Answer{}, context.DeadlineExceeded, false},
		"nonsense":                {wire.Answer{}, errors.New("malformed HTTP response"), false},
	} {
		var counts counts
		if counts.note(c.answer, c.err); (len(counts.wrong) == 0) != c.honest {
			t.Errorf("%s: %q", name, counts.wrong)
		}
	}
}

// TestPace: no more begin than the pace allows, and it ends with its context.
func TestPace(t *testing.T) {
	const rate, n = 1000, 50
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now() // before the first may begin
	permits := pace(ctx, rate)
	for range n {
		<-permits
	}
	if took := time.Since(began); took < (n-1)*time.Second/rate {
		t.Errorf("%d at %d a second took only %s", n, rate, took)
	}
	cancel()
	for range permits { // until it is closed
	}
}
