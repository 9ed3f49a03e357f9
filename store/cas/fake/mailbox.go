package fake

import (
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store/cas"
)

// mailbox delivers letters to one instance, one after the other.
type mailbox struct {
	deliver func(cas.Letter)
	lost    func()
	faults  func() LetterFault

	mu      sync.Mutex
	waiting []cas.Letter
	ready   chan struct{}
}

// LetterFault says what happens to a letter.
type LetterFault struct {
	// Slow delays it, and those behind it.
	Slow time.Duration
	// Lost: it is not delivered. Then lost is called, Told later.
	Lost bool
	Told time.Duration
}

func (m *mailbox) post(l cas.Letter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, l)
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() []cas.Letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.waiting
	m.waiting = nil
	return all
}

// run delivers letters until stop is closed.
func (m *mailbox) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-m.ready:
		}
		for _, l := range m.take() {
			fault := m.faults()
			if !rest(fault.Slow, stop) {
				return
			}
			if !fault.Lost {
				m.deliver(l)
				continue
			}
			if !rest(fault.Told, stop) {
				return
			}
			m.lost()
		}
	}
}

// rest waits, and returns false if stop was closed before.
func rest(d time.Duration, stop <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}
