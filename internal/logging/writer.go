package logging

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWaiting limits the bytes that wait for the log's reader, in addition to an equal buffer in a Linux pipe.
	maxWaiting = 64 << 10
	// lastLimit limits the wait for the reader at the end.
	lastLimit = time.Second

	linesLost = "log lines lost: they were not read in time, or could not be written"
)

// writer writes lines in its own goroutine, so callers never wait for the reader. Lines beyond maxWaiting are
// lost and counted.
type writer struct {
	out    io.Writer
	format func(io.Writer) slog.Handler
	// news has an element when there is something to write.
	news  chan struct{}
	ended chan struct{}
	// torn is set if only a part of the last line could be written. Only run uses it.
	torn bool

	// dropped is how many lines were lost since the start.
	dropped atomic.Int64

	mu      sync.Mutex
	lines   []byte
	lost    int64 // lines that came after the waiting ones
	stopped bool
}

// newWriter makes a writer to out. It reports lost lines in the given format.
func newWriter(out io.Writer, format func(io.Writer) slog.Handler) *writer {
	w := &writer{out: out, format: format, news: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Write adds a line. After a lost line, all further ones are lost until the waiting lines are being written. So
// one gap has one report.
func (w *writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.lost > 0 || len(w.lines)+len(line) > maxWaiting {
		w.lost++
		w.dropped.Add(1)
	} else {
		w.lines = append(w.lines, line...)
	}
	w.wake()
	return len(line), nil
}

// stop waits until the waiting lines are written, at most for lastLimit.
func (w *writer) stop() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.wake()
	select {
	case <-w.ended:
	case <-time.After(lastLimit):
	}
}

func (w *writer) wake() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *writer) run() {
	defer close(w.ended)
	var unsaid int64
	for range w.news {
		w.mu.Lock()
		lines, lost, stopped := w.lines, w.lost, w.stopped
		w.lines, w.lost = nil, 0
		w.mu.Unlock()
		unsaid += lost
		if n, err := w.write(lines); err != nil { // a full disk, or a reader that has left
			failed := int64(bytes.Count(lines[n:], []byte{'\n'}))
			w.dropped.Add(failed)
			unsaid += failed
		} else if unsaid > 0 && w.say(unsaid) == nil {
			unsaid = 0
		}
		if stopped {
			return
		}
	}
}

// write first ends a torn line, so that the next line begins on its own.
func (w *writer) write(lines []byte) (n int, err error) {
	if w.torn {
		if _, err := w.out.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
	}
	n, err = w.out.Write(lines)
	w.torn = n > 0 && lines[n-1] != '\n'
	return n, err
}

func (w *writer) say(n int64) error {
	var text bytes.Buffer
	slog.New(w.format(&text)).Warn(linesLost, "count", n)
	_, err := w.write(text.Bytes())
	return err
}
