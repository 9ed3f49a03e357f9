// Package logging leaves out and counts lines that would flood the log. It never holds anybody up.
//
// # Rates
//
// Each message, a constant in the code, may come 50 times at once and then 5 times a second, whatever
// its level and attributes. So a storm of one kind hides no line of another, and rare lines (start,
// ready, stop, a lost lease) are never left out. The number of lines left out is logged at most every
// ten seconds, and at the end.
//
// # Readers
//
// If the reader of the log hangs, 64 KiB of lines wait in memory, and those beyond are lost: a lock
// that is not renewed is worse than a missing line. When lines are read again, one says how many were
// lost in that place. At the end of the process the last lines have a second.
package logging

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// burst and perSecond are the rate of each message.
	burst     = 50
	perSecond = 5
	// sayEvery is how often it is said what was left out.
	sayEvery = 10 * time.Second
	// maxMessages is how many messages are told apart: more than the code has. More share a rate.
	maxMessages = 1000
	otherwise   = "(others)"

	leftOut = "log lines left out"
)

// Handler passes lines on within the rates, which loggers made of it (attributes, groups) share.
type Handler struct {
	next  slog.Handler
	rates *rates
}

type rates struct {
	// out writes what was left out, without the attributes of anybody.
	out     slog.Handler
	dropped atomic.Int64
	// lines is what out writes to.
	lines *writer

	mu       sync.Mutex
	messages map[string]*message
	// timer is set while there is something to be said.
	timer *time.Timer
}

type message struct {
	limit *rate.Limiter
	// dropped lines were not told of yet.
	dropped int
}

// New makes a handler that writes lines to out, in a format. At the end, Stop it.
func New(out io.Writer, format func(io.Writer) slog.Handler) *Handler {
	lines := newWriter(out, format)
	return limit(format(lines), lines)
}

func limit(next slog.Handler, lines *writer) *Handler {
	return &Handler{next, &rates{out: next, lines: lines, messages: map[string]*message{}}}
}

// Enabled implements [slog.Handler].
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if !h.rates.allow(r.Message) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.next.WithAttrs(attrs), h.rates}
}

// WithGroup implements [slog.Handler].
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.next.WithGroup(name), h.rates}
}

// Dropped is how many lines were left out or lost since the start.
func (h *Handler) Dropped() int64 { return h.rates.dropped.Load() + h.rates.lines.dropped.Load() }

// Stop says what was left out, and waits up to a second until all is written. Later lines are lost.
func (h *Handler) Stop() {
	r := h.rates
	r.mu.Lock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.say()
	r.lines.stop()
}

func (r *rates) allow(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.messages[text]
	if m == nil {
		m = r.add(text)
	}
	if m.limit.Allow() {
		return true
	}
	r.dropped.Add(1)
	m.dropped++
	if r.timer == nil {
		r.timer = time.AfterFunc(sayEvery, r.say)
	}
	return false
}

func (r *rates) add(text string) *message {
	if len(r.messages) >= maxMessages {
		text = otherwise
	}
	if r.messages[text] == nil {
		r.messages[text] = &message{limit: rate.NewLimiter(perSecond, burst)}
	}
	return r.messages[text]
}

// say writes one line for each message of which lines were left out.
func (r *rates) say() {
	counts := map[string]int{}
	r.mu.Lock()
	r.timer = nil
	for text, m := range r.messages {
		if m.dropped > 0 {
			counts[text] = m.dropped
			m.dropped = 0
		}
	}
	r.mu.Unlock()
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		slog.New(r.out).Warn(leftOut, "message", text, "count", counts[text])
	}
}
