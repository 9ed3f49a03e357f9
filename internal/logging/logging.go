// Package logging omits and counts lines that would flood the log. Its callers never wait.
//
// # Rates
//
// Each message (a constant in the code) may come 50 times at once and then 5 times a second, regardless of its
// level and attributes. So many lines of one kind do not hide those of another, and rare lines (start, ready, stop,
// a lost lease) are never omitted. The number of omitted lines is logged at most every ten seconds, and at the end.
//
// # Readers
//
// If the log's reader does not read, 64 KiB of lines wait in memory, and further ones are lost, because a lock
// that is not renewed is worse than a missing line. When lines are read again, one line at the gap says how
// many were lost. At the end of the process, the last lines have one second.
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
	// sayEvery is how often the omitted lines are reported.
	sayEvery = 10 * time.Second
	// maxMessages limits the messages with their own rate. It is more than the code has. Further ones share a rate.
	maxMessages = 1000
	otherwise   = "(others)"

	leftOut = "log lines left out"
)

// Handler passes on lines within the rates. Loggers made from it (attributes, groups) share these rates.
type Handler struct {
	next  slog.Handler
	rates *rates
}

type rates struct {
	// out writes the reports, without a logger's attributes.
	out     slog.Handler
	dropped atomic.Int64
	// lines is what out writes to.
	lines *writer

	mu       sync.Mutex
	messages map[string]*message
	// timer is set while a report is due.
	timer *time.Timer
}

type message struct {
	limit *rate.Limiter
	// dropped counts lines that are not reported yet.
	dropped int
}

// New makes a handler that writes lines to out in a format. Its owner must call Stop at the end.
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

// Dropped is the number of omitted or lost lines since the start.
func (h *Handler) Dropped() int64 { return h.rates.dropped.Load() + h.rates.lines.dropped.Load() }

// Stop reports the omitted lines, and waits up to a second until all lines are written. Later lines are lost.
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

// say writes one line for each message with omitted lines.
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
