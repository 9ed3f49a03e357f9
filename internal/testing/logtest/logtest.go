// Package logtest collects logs or output for tests that read them while others still write.
package logtest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log is the text written so far. The zero value is ready for use by several goroutines.
type Log struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // nil until Changed is called
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

// Forget drops all text written so far.
func (l *Log) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// Changed returns a channel that the next write closes.
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
			t.Fatalf("the log does not contain %q:\n%s", text, l)
		}
	}
}
