package pace

import (
	"testing"
	"time"
)

// A delay counts for the times that it meets, as often as processes take turns at an answer. The time that each measurement takes is none.
func TestSlowness(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	m := &Meter{began: at(1000)}
	for _, d := range [][2]int{{0, 10}, {10, 21}, {21, 31}, {31, 81}, {81, 91}, {91, 101}} {
		m.add(delay{from: at(d[0]), to: at(d[1])})
	}
	for name, c := range map[string]struct {
		from, to int
		least    time.Duration
	}{
		"before it":           {0, 30, 0},
		"it begins meanwhile": {5, 40, 400 * time.Millisecond},
		"during it":           {40, 50, 400 * time.Millisecond},
		"it ends meanwhile":   {80, 95, 400 * time.Millisecond},
		"after it":            {82, 95, 0},
	} {
		if got := m.Slowness(at(c.from), at(c.to)); got < c.least || got > c.least+turns*time.Millisecond {
			t.Errorf("%s: %s, want about %s", name, got, c.least)
		}
	}
}

// The measurement that is under way counts.
func TestSlownessNow(t *testing.T) {
	t.Parallel()
	m := &Meter{least: 10 * time.Millisecond, began: time.Now().Add(-time.Second)}
	if got := m.Since(time.Now()); got < 9*time.Second || got > time.Minute {
		t.Errorf("%s, want about 10 s", got)
	}
}

// It measures while the test runs, and no longer.
func TestStart(t *testing.T) {
	var m *Meter
	t.Run("measured", func(t *testing.T) {
		m = Start(t)
		first := m.last()
		for m.last().Equal(first) {
			time.Sleep(pause) // of a poll
		}
	})
	last := m.last()
	if time.Sleep(3 * pause); !m.last().Equal(last) {
		t.Error("it still measures after the end of the test")
	}
}

// last is when the last measurement ended.
func (m *Meter) last() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.delays[len(m.delays)-1].to
}
