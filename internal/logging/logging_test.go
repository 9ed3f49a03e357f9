package logging

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is what was written, for several goroutines.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// written is a log without times, whose lines stand in out at once.
func written() (*lines, *Handler) {
	out, none := &lines{}, newWriter(io.Discard, withoutTimes)
	none.stop()
	return out, limit(withoutTimes(out), none)
}

func withoutTimes(out io.Writer) slog.Handler {
	return slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

func count(out *lines, part string) int { return strings.Count(out.String(), part) }

func TestAFloodIsCutAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, h := written()
		log := slog.New(h)
		for i := range 1000 {
			log.Error("flood", "i", i)
		}
		log.Info("stopping")
		if flood, other := count(out, "msg=flood"), count(out, "msg=stopping"); flood != burst || other != 1 {
			t.Fatalf("%d lines of the flood, %d of the other message", flood, other)
		}
		// In each second from now on there are five.
		time.Sleep(2 * time.Second)
		for range 100 {
			log.Error("flood")
		}
		if flood := count(out, "msg=flood"); flood != burst+2*perSecond {
			t.Fatalf("%d lines after two seconds", flood)
		}
		if count(out, leftOut) != 0 {
			t.Fatal("it is said too early:\n", out)
		}
		time.Sleep(sayEvery)
		synctest.Wait()
		const want = `level=WARN msg="log lines left out" message=flood count=1040`
		if count(out, want) != 1 || count(out, leftOut) != 1 || h.Dropped() != 1040 {
			t.Fatalf("%d were left out, not %q:\n%s", h.Dropped(), want, out)
		}
		time.Sleep(10 * sayEvery)
		synctest.Wait()
		if count(out, leftOut) != 1 {
			t.Error("said again, with nothing new:\n", out)
		}
	})
}

func TestStopSaysTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, h := written()
		log := slog.New(h)
		for range burst + 3 {
			log.Info("a")
			log.Debug("never seen, so never counted")
		}
		h.Stop()
		h.Stop()
		if count(out, `message=a count=3`) != 1 || count(out, leftOut) != 1 || h.Dropped() != 3 {
			t.Errorf("%d: %s", h.Dropped(), out)
		}
		// Later lines are counted with a timer of their own: the old one is gone.
		time.Sleep(sayEvery / 2)
		for range 2 * burst {
			log.Info("a")
		}
		time.Sleep(sayEvery - time.Second)
		synctest.Wait()
		if count(out, leftOut) != 1 {
			t.Error("told too early:", out)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if count(out, leftOut) != 2 {
			t.Error("not told:", out)
		}
	})
}

func TestDerivedLoggersShareTheRates(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		out, h := written()
		log := slog.New(h)
		for range burst {
			log.With("a", 1).Info("m")
			log.WithGroup("g").Info("m", "b", 2)
		}
		if n := count(out, "msg=m"); n != burst {
			t.Errorf("%d lines", n)
		}
		if !strings.Contains(out.String(), "msg=m a=1\n") || !strings.Contains(out.String(), "msg=m g.b=2\n") {
			t.Error(out)
		}
		h.WithAttrs([]slog.Attr{slog.Int("a", 1)}).(*Handler).Stop()
		if !strings.Contains(out.String(), "msg=\"log lines left out\" message=m count=50\n") {
			t.Error("what is left out is told without the attributes of anybody:", out)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	out, h := written()
	log := slog.New(h)
	for i := range 3 * maxMessages {
		log.Info(fmt.Sprint("message ", i)) //nolint:sloglint // this is the mistake that is meant
	}
	if n := len(h.rates.messages); n != maxMessages+1 {
		t.Errorf("%d messages are kept", n)
	}
	h.Stop()
	if count(out, `message=(others) count=`) != 1 {
		t.Error("the rest is not told of")
	}
}

func TestConcurrently(t *testing.T) {
	out, h := written()
	log := slog.New(h)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				log.Info("m")
			}
			h.Stop()
		})
	}
	wg.Wait()
	h.Stop()
	told, shown := 0, count(out, "msg=m")
	for line := range strings.Lines(out.String()) {
		n := 0
		if _, after, ok := strings.Cut(line, "message=m count="); ok {
			_, _ = fmt.Sscan(after, &n)
		}
		told += n
	}
	if told+shown != 4000 || int64(told) != h.Dropped() {
		t.Errorf("of 4000 lines %d are shown, and %d are told of (%d counted)", shown, told, h.Dropped())
	}
}

func TestTraced(t *testing.T) {
	out, h := written()
	log := slog.New(h)
	tracing.Logger(log, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").Info("with")
	tracing.Logger(tracing.Logger(log, ""), "nonsense").Info("without")
	const want = "level=INFO msg=with trace_id=4bf92f3577b34da6a3ce929d0e0e4736\nlevel=INFO msg=without\n"
	if out.String() != want {
		t.Errorf("%q", out)
	}
}
