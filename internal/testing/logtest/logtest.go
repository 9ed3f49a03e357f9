// Package logtest keeps what is logged or printed, for tests that read it while others
// still write.
package logtest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log is what was written so far. The zero value is ready for use, by several goroutines.
type Log struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // nil: nobody has asked
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return l.text.Write(p)
}

// String returns all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Forget leaves nothing of what was written so far.
func (l *Log) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// Changed is closed by the next write.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// patience is how long Await waits.
const patience = 30 * time.Second

// Await waits until the log has this text.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	late := time.After(patience)
	for {
		changed := l.Changed()
		if strings.Contains(l.String(), text) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the log does not say %q:\n%s", text, l)
		}
	}
}
