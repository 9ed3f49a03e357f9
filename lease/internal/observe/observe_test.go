package observe

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/store"
)

// TestUnrecordedCallAllocatesNothing: most calls are not recorded, and each has these events.
func TestUnrecordedCallAllocatesNothing(t *testing.T) {
	o := New(slog.New(slog.DiscardHandler), (*metrics.Locks)(nil), nil, true)
	ctx, lock := context.Background(), store.Lock{Key: "k", Token: 1}
	if n := testing.AllocsPerRun(100, func() {
		c := o.Trace(ctx, "k", false)
		c.Enqueue(&lock)
		c.See(&lock, 1)
		o.HandedOver(c, "", time.Second)
		c.FoundFree()
		h := c.Hold(false)
		h.Begin(1, "s")
		c.Leave()
		c.EndWait(Granted)
		o.Denied(ctx, &lock)
		o.Took(ctx)
		o.LinkAcquire(o.Along(h.Context(), c.Carry(ctx)), "")
		o.HoldEnded(h, "k", Released, time.Second)
		o.HeldUntilNow("k", 1, &store.Verdict{})
		o.HandedBack("k", 1, "")
		_, end := o.Batch(ctx, "acquire", c, 1)
		end(nil)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRefusalLevels: only a refusal that should not happen is a warning. The line of a wrong
// claim has been written before.
func TestRefusalLevels(t *testing.T) {
	for code, want := range map[string]string{
		NotHolder: "", Lost: "", Skipped: "",
		Held: "level=DEBUG", Timeout: "level=DEBUG", CallerLeft: "level=DEBUG", SessionEnded: "level=DEBUG", Draining: "level=DEBUG",
		Limit: "level=WARN", Unavailable: "level=WARN", Internal: "level=WARN",
	} {
		log := &logtest.Log{}
		o := New(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), (*metrics.Locks)(nil), nil, true)
		o.Refused(t.Context(), Refusal{
			Operation: "acquire", Key: "k", Code: code, Err: errors.New("no"),
			Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		})
		if got := log.String(); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q", code, got)
		} else if want != "" && !strings.Contains(got, "trace_id=4bf92f3577b34da6a3ce929d0e0e4736") {
			t.Errorf("%s: no trace in %q", code, got)
		}
	}
}
