package batcher

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The pauses between two tries of an item with a locked row grow from againMin to againMax.
const (
	againMin = 20 * time.Millisecond
	againMax = 500 * time.Millisecond
)

// slowPath contains the items of a lane whose rows are locked. One goroutine tries all items whose pause is
// over, in one operation. So they use at most one connection, and an item whose row is free again does not
// wait for the others. The lane's mutex guards all fields.
type slowPath[T, R any] struct {
	// lines are by key. While a key has a line, its items are neither in the lane's queue nor in a batch.
	lines   map[string]*line[T, R]
	running bool
	// wake has an element if there is a new line.
	wake chan struct{}
}

// line is an item whose row is locked, followed by the later items of the same key.
type line[T, R any] struct {
	key     string
	entries []entry[T, R]
	pause   time.Duration
	at      time.Time // when the first item is tried again
}

func (s *slowPath[T, R]) init() {
	s.lines = make(map[string]*line[T, R])
	s.wake = make(chan struct{}, 1)
}

func (ln *line[T, R]) join(entries ...entry[T, R]) {
	now := time.Now()
	for _, e := range entries {
		e.since = now
		ln.entries = append(ln.entries, e)
	}
}

// later sets the time of the next try. The pause is random, at least half as long, so that sidecars that
// wait for the same row do not stay synchronous. The last try is when the time of the first item ends.
func (ln *line[T, R]) later(timeout time.Duration) {
	ln.pause = min(2*ln.pause, againMax)
	pause := ln.pause/2 + rand.N(ln.pause/2)
	if left := timeout - time.Since(ln.entries[0].since); left < pause {
		pause = max(left, againMin/2)
	}
	ln.at = time.Now().Add(pause)
}

// setAside moves the items of a batch whose rows are locked to their lines. It returns the others with
// their answers. sent is when the batch was sent.
func (l *Lane[T, R]) setAside(batch []entry[T, R], answers []R, sent time.Time) ([]entry[T, R], []R) {
	if l.locked == nil || !slices.ContainsFunc(answers, l.locked) {
		return batch, answers
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for i, e := range batch {
		if l.locked(answers[i]) {
			e.since = sent
			k := l.key(e.item)
			if ln := l.slow.lines[k]; ln != nil { // an earlier item of this batch has the same key
				ln.entries = append(ln.entries, e)
				continue
			}
			ln := &line[T, R]{key: k, entries: []entry[T, R]{e}, pause: againMin / 2}
			ln.later(l.cfg.Timeout)
			l.slow.lines[ln.key] = ln
			continue
		}
		batch[n], answers[n] = e, answers[i]
		n++
	}
	clear(batch[n:])
	l.moveBehind()
	l.goOnSlowly()
	return batch[:n], answers[:n]
}

// moveBehind moves queued items to the lines of their keys, so that they do not overtake. The caller holds l.mu.
func (l *Lane[T, R]) moveBehind() {
	l.queue = slices.DeleteFunc(l.queue, func(e entry[T, R]) bool {
		k := l.key(e.item)
		ln := l.slow.lines[k]
		if ln == nil {
			return false
		}
		ln.join(e)
		of := l.keys[k]
		if of.queued--; of.queued == 0 {
			ln.join(of.later...)
		}
		l.setKey(k, of)
		return true
	})
}

// goOnSlowly starts or wakes the goroutine of the slow path. The caller holds l.mu.
func (l *Lane[T, R]) goOnSlowly() {
	if !l.slow.running {
		l.slow.running = true
		go l.runSlowly()
		return
	}
	select {
	case l.slow.wake <- struct{}{}:
	default:
	}
}

// runSlowly tries items with locked rows until there are none. When Stop runs out of time, it no longer pauses.
func (l *Lane[T, R]) runSlowly() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.mu.Lock()
		due, wait := l.slow.due(l.ctx.Err() != nil, l.cfg.Max)
		if len(l.slow.lines) == 0 {
			l.slow.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if len(due) > 0 {
			l.askAgain(due)
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-l.slow.wake:
		case <-l.ctx.Done():
		}
	}
}

// due returns the lines whose pause is over (or all), the longest waiting first. If there is none, wait is
// the time until the next one. The caller holds the lane's mutex.
func (s *slowPath[T, R]) due(all bool, limit int) (due []*line[T, R], wait time.Duration) {
	now := time.Now()
	wait = againMax
	for _, ln := range s.lines {
		if all || !ln.at.After(now) {
			due = append(due, ln)
		} else {
			wait = min(wait, ln.at.Sub(now))
		}
	}
	slices.SortFunc(due, func(a, b *line[T, R]) int { return a.at.Compare(b.at) })
	return due[:min(len(due), limit)], wait
}

func (l *Lane[T, R]) askAgain(due []*line[T, R]) {
	firsts := make([]entry[T, R], len(due))
	items := make([]T, len(due))
	l.mu.Lock()
	for i, ln := range due {
		firsts[i] = ln.entries[0]
		items[i] = firsts[i].item
	}
	l.mu.Unlock()
	answers, err := l.operate(items, l.callsOf(firsts))
	for i, ln := range due {
		var r R
		if err == nil {
			r = answers[i]
		}
		l.settle(ln, r, err)
	}
}

// settle answers the first item of a line, unless its row is still locked and its time is not over. If the
// row is free, or after an error, the later items return to the queue, so that answers of a key keep the
// order of its items. An error does not mean that the row is locked.
func (l *Lane[T, R]) settle(ln *line[T, R], r R, err error) {
	locked := err == nil && l.locked(r)
	l.mu.Lock()
	n := 1
	if locked {
		n = ln.late(l.cfg.Timeout)
	}
	answered := slices.Clone(ln.entries[:n])
	ln.entries = slices.Delete(ln.entries, 0, n)
	l.mu.Unlock()
	l.leave(n)
	for _, e := range answered {
		e.done(r, err)
		l.work.Done()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !locked || len(ln.entries) == 0 {
		l.dissolve(ln)
	} else {
		ln.later(l.cfg.Timeout)
	}
}

// late counts the items at the front whose timeout is over. The answer of the first is valid for all of them.
func (ln *line[T, R]) late(timeout time.Duration) int {
	n := slices.IndexFunc(ln.entries, func(e entry[T, R]) bool { return time.Since(e.since) < timeout })
	if n < 0 {
		return len(ln.entries)
	}
	return n
}

// dissolve returns the items of a line to the queue. The caller holds l.mu.
func (l *Lane[T, R]) dissolve(ln *line[T, R]) {
	delete(l.slow.lines, ln.key)
	for _, e := range ln.entries {
		l.add(e)
	}
	l.goOn()
}
