// Package pace measures how slow the machine is while a test runs. A time that is promised is that of the product on a machine that has time for it. A test of such
// a time beside other tests would measure them, too. So it allows for the longest delay that its own process has seen meanwhile.
package pace

import (
	"crypto/sha256"
	"sync"
	"testing"
	"time"
)

const (
	// pause is between two measurements. They take a tenth of one processor at most.
	pause = 10 * time.Millisecond
	// size is how much is hashed in one: about as much work as a small request is for all its processes together, a millisecond or less.
	size = 256 << 10
	// turns is how many delays an answer may meet, one after the other: processes take turns at it, each of which can be delayed.
	turns = 10
)

// Meter measures from [Start] until the test ends.
type Meter struct {
	mu     sync.Mutex
	least  time.Duration // of all measurements
	began  time.Time     // of the running one
	delays []delay
}

// delay is a measurement that took longer than the fastest one.
type delay struct {
	from, to time.Time
	took     time.Duration
}

// Start begins to measure.
func Start(tb testing.TB) *Meter {
	tb.Helper()
	m := &Meter{}
	ended, done := make(chan struct{}), make(chan struct{})
	m.measure()
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			default:
				m.measure()
			}
		}
	}()
	tb.Cleanup(func() { close(ended); <-done })
	return m
}

// measure waits and works, as each turn of a process does.
func (m *Meter) measure() {
	began := time.Now()
	m.mu.Lock()
	m.began = began
	m.mu.Unlock()
	time.Sleep(pause) // the pause of a poll
	var text [size]byte
	_ = sha256.Sum256(text[:])
	m.add(delay{from: began, to: time.Now()})
}

func (m *Meter) add(d delay) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d.took = d.to.Sub(d.from)
	if m.least == 0 || d.took < m.least {
		m.least = d.took
	}
	if n := len(m.delays); n > 0 && d.took < 2*m.least && m.delays[n-1].took < 2*m.least {
		m.delays[n-1].to = d.to // these two say nothing
		return
	}
	m.delays = append(m.delays, d)
}

// Slowness is by how much the machine may have delayed an answer between two times.
func (m *Meter) Slowness(from, to time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	longest := max(0, time.Since(m.began)-m.least) // the running one
	if m.began.After(to) {
		longest = 0
	}
	for _, d := range m.delays {
		if !d.from.After(to) && !d.to.Before(from) {
			longest = max(longest, d.took-m.least)
		}
	}
	return turns * longest
}

// Since is Slowness from a time until now.
func (m *Meter) Since(from time.Time) time.Duration { return m.Slowness(from, time.Now()) }
