package logging

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxWaiting is how many bytes wait for the log's reader: as many as a pipe of Linux takes before.
	maxWaiting = 64 << 10
	// lastLimit is how long the end waits for them to be read.
	lastLimit = time.Second

	linesLost = "log lines lost: they were not read in time, or could not be written"
)

// writer passes lines on in its own goroutine: nobody waits for the reader. Lines beyond maxWaiting are
// lost, and counted.
type writer struct {
	out    io.Writer
	format func(io.Writer) slog.Handler
	// news has a word when there is something to do.
	news  chan struct{}
	ended chan struct{}
	// torn is set when only a part of the last line could be written. It is run's.
	torn bool

	mu    sync.Mutex
	lines []byte
	// lost lines came after those that wait; all is how many were lost since the start.
	lost, all int64
	stopped   bool
}

// newWriter makes a writer to out. It says in the given format what was lost.
func newWriter(out io.Writer, format func(io.Writer) slog.Handler) *writer {
	w := &writer{out: out, format: format, news: make(chan struct{}, 1), ended: make(chan struct{})}
	go w.run()
	return w
}

// Write takes a line. After a lost line all are lost until the waiting ones are on their way: then one
// gap has one line about it.
func (w *writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.lost > 0 || len(w.lines)+len(line) > maxWaiting {
		w.lost++
		w.all++
	} else {
		w.lines = append(w.lines, line...)
	}
	w.wake()
	return len(line), nil
}

func (w *writer) dropped() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}

// stop waits until the lines that wait are written, for lastLimit at most.
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
		lines, more, stopped := w.take()
		unsaid += more
		n, err := w.write(lines)
		if err != nil {
			unsaid += w.failed(lines[n:])
		} else if unsaid > 0 && w.say(unsaid) == nil {
			unsaid = 0
		}
		if stopped {
			return
		}
	}
}

// write first ends a torn line, so that the next one stands by itself.
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

func (w *writer) take() (lines []byte, lost int64, stopped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines, lost = w.lines, w.lost
	w.lines, w.lost = nil, 0
	return lines, lost, w.stopped
}

// failed counts lines that could not be written: a full disk, or nobody reads any more.
func (w *writer) failed(lines []byte) int64 {
	n := int64(bytes.Count(lines, []byte{'\n'}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all += n
	return n
}

func (w *writer) say(n int64) error {
	var text bytes.Buffer
	to := w.format(&text)
	if !to.Enabled(context.Background(), slog.LevelWarn) {
		return nil
	}
	line := slog.NewRecord(time.Now(), slog.LevelWarn, linesLost, 0)
	line.AddAttrs(slog.Int64("count", n))
	if err := to.Handle(context.Background(), line); err != nil {
		return err
	}
	_, err := w.write(text.Bytes())
	return err
}
