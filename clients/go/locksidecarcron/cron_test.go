package locksidecarcron

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

// patience is for what must happen soon. A busy machine may need long.
const patience = time.Minute

// lines is a logger.
type lines chan string

func (l lines) Info(message string, _ ...any) { l <- message }

func (l lines) Error(err error, message string, _ ...any) { l <- fmt.Sprintf("%s: %v", message, err) }

func (l lines) has(t *testing.T, text string) {
	t.Helper()
	for end := time.After(patience); ; {
		select {
		case line := <-l:
			if strings.Contains(line, text) {
				return
			}
		case <-end:
			t.Fatalf("nothing says %q", text)
		}
	}
}

// eachSecond runs a scheduler as in a process of its own, until the test ends.
func eachSecond(t *testing.T, client *locksidecar.Client, log lines, run Run) {
	t.Helper()
	scheduler := cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC))
	schedule, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("* * * * * *")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(client, Options{Logger: log}).Schedule(scheduler, "each-second", schedule, run); err != nil {
		t.Fatal(err)
	}
	scheduler.Start()
	t.Cleanup(func() { <-scheduler.Stop().Done() })
}

func TestEachTickRunsOnce(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	log, ticks := make(lines, 1000), make(chan string, 100)
	watching := sidecar.Client()
	for range 3 {
		eachSecond(t, sidecar.Client(), log, func(ctx context.Context, _ *locksidecar.Lock) error {
			info, err := watching.Get(ctx, "job:each-second", locksidecar.Fresh())
			if err == nil {
				ticks <- string(info.Holder.Data)
			}
			return err
		})
	}
	seen := map[string]bool{}
	for len(seen) < 3 {
		select {
		case tick := <-ticks:
			if seen[tick] || !strings.Contains(tick, "tick:job:each-second@2") {
				t.Errorf("%s ran again, or is no tick", tick)
			}
			seen[tick] = true
		case <-time.After(patience):
			t.Fatal("nothing runs")
		}
	}
	log.has(t, "skip: another process has the tick")
}

func TestRunsDoNotOverlap(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	log, running, finish := make(lines, 1000), make(chan struct{}, 100), make(chan struct{})
	for range 2 {
		eachSecond(t, sidecar.Client(), log, func(context.Context, *locksidecar.Lock) error {
			running <- struct{}{}
			<-finish
			return nil
		})
	}
	log.has(t, "skip: an earlier run goes on")
	if n := len(running); n != 1 {
		t.Errorf("%d run at a time", n)
	}
	close(finish)
}

func TestALossEndsTheRun(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	log, running, lost := make(lines, 1000), make(chan struct{}, 100), make(chan error, 100)
	eachSecond(t, sidecar.Client(), log, func(ctx context.Context, _ *locksidecar.Lock) error {
		running <- struct{}{}
		select {
		case <-ctx.Done():
			lost <- context.Cause(ctx)
		case <-time.After(patience):
			lost <- errors.New("the context does not end")
		}
		return nil
	})
	<-running
	sidecar.Lose(t, "job:each-second")
	if err := <-lost; !errors.Is(err, locksidecar.ErrLockLost) {
		t.Error(err)
	}
	log.has(t, "the run has failed")
	// Without a sidecar a tick fails.
	sidecar.Kill()
	log.has(t, "its lock cannot be acquired")
}

func TestTicks(t *testing.T) {
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		name, spec string
		location   *time.Location
		now, want  string // no want: it is skipped
		hold       time.Duration
	}{
		{"just fired", "0 3 * * *", time.UTC, "2026-12-01T03:00:00.01Z", "2026-12-01T03:00:00Z", 10 * time.Minute},
		{"a clock that is late for others", "0 3 * * *", time.UTC, "2026-12-01T03:04:59Z", "2026-12-01T03:00:00Z", 10 * time.Minute},
		{"too late", "0 3 * * *", time.UTC, "2026-12-01T03:05:01Z", "", 0},
		{"a clock that was set back", "0 3 * * *", time.UTC, "2026-12-01T02:59:59.9Z", "", 0},
		{"the last of several", "* * * * *", time.UTC, "2026-12-01T03:02:30Z", "2026-12-01T03:02:00Z", 10 * time.Minute},
		{"another time zone", "0 3 * * *", berlin, "2026-12-01T02:00:01Z", "2026-12-01T02:00:00Z", 10 * time.Minute},
		{"an interval", "@every 90s", time.UTC, "2026-12-01T03:02:10Z", "2026-12-01T03:01:30Z", 90*time.Second + 10*time.Minute},
		{"a day", "@every 24h", time.UTC, "2026-12-01T23:00:00Z", "2026-12-01T00:00:00Z", 24 * time.Hour},
		{"the end of a day", "@every 24h", time.UTC, "2026-12-01T23:55:01Z", "", 0},
	} {
		schedule, err := cron.ParseStandard(one.spec)
		if err != nil {
			t.Fatal(err)
		}
		j := &job{fleet: New(nil, Options{}), schedule: schedule, location: one.location}
		if interval, ok := schedule.(cron.ConstantDelaySchedule); ok {
			j.every = interval.Delay
		}
		got, hold, ok := j.tick(at(one.now))
		if ok != (one.want != "") || ok && (!got.Equal(at(one.want)) || hold != one.hold) {
			t.Errorf("%s: %s for %s, %t; want %q for %s", one.name, got, hold, ok, one.want, one.hold)
		}
	}
}

func TestWrongJobs(t *testing.T) {
	fleet, scheduler := New(nil, Options{}), cron.New()
	for text, add := range map[string]func() (cron.EntryID, error){
		"more than a day": func() (cron.EntryID, error) { return fleet.AddFunc(scheduler, "a", "@every 25h", nil) },
		"no name":         func() (cron.EntryID, error) { return fleet.AddFunc(scheduler, "", "@hourly", nil) },
		"expected":        func() (cron.EntryID, error) { return fleet.AddFunc(scheduler, "a", "at noon", nil) },
	} {
		if _, err := add(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
