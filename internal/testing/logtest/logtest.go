// Package logtest keeps what is logged or printed, for tests that read it while others
// still write.
package logtest

import (
	"bytes"
	"sync"
)

// Log is what was written so far. The zero value is ready for use, by several goroutines.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
