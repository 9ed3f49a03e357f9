package batcher

import (
	"math/rand/v2"
	"slices"
	"time"
)

// The pauses between two questions for a locked item grow from againMin to againMax.
const (
	againMin = 20 * time.Millisecond
	againMax = 500 * time.Millisecond
)

// slowPath has the locked items of a lane. One goroutine asks again for those whose pause is over,
// in one operation. So they never use more than one connection, and an unlocked item does not wait
// for the others. The lane's mutex guards all fields.
type slowPath[T, R any] struct {
	// lines are by key. While a key has a line, no item of it is in the lane's queue or in a batch.
	lines   map[string]*line[T, R]
	running bool
	// wake: there is a new line.
	wake chan struct{}
}

// line is an item whose row is locked, and the later items of the same key.
type line[T, R any] struct {
	key     string
	entries []entry[T, R]
	pause   time.Duration
	at      time.Time // when the first is asked again
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

// later sets the time of the next question. The pause is random, at least half as long, so that
// sidecars that wait for the same row do not ask in step.
func (ln *line[T, R]) later() {
	ln.pause = min(2*ln.pause, againMax)
	ln.at = time.Now().Add(ln.pause/2 + rand.N(ln.pause/2))
}

// setAside moves the locked items of a batch, sent at that time, to their lines, and returns the
// others with their answers.
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
			if ln := l.slow.lines[k]; ln != nil { // one before it in this batch
				ln.entries = append(ln.entries, e)
				continue
			}
			ln := &line[T, R]{key: k, entries: []entry[T, R]{e}, pause: againMin / 2}
			ln.later()
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

// moveBehind moves queued items of locked keys to their lines, so that they do not overtake. l.mu is held.
func (l *Lane[T, R]) moveBehind() {
	l.queue = slices.DeleteFunc(l.queue, func(e entry[T, R]) bool {
		k := l.key(e.item)
		ln := l.slow.lines[k]
		if ln == nil {
			return false
		}
		ln.join(e)
		ln.join(l.later[k]...)
		delete(l.later, k)
		return true
	})
}

// goOnSlowly starts or wakes the goroutine of the slow path. l.mu is held.
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

// runSlowly asks for locked items until there are none. When Stop gives up, no item pauses any longer.
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

// due returns the lines whose pause is over (or all), the longest waiting first. Else wait is the
// time until the next one. The lane's mutex is held.
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

// settle answers the first item of a line, unless its row is still locked and its time is not over.
// If the row is not locked, or with an error, the later items return to the queue, so that answers
// of a key keep the order of its items. An error is no sign of a locked row.
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
		ln.later()
	}
}

// late counts the items at the front whose timeout is over. The first one's answer is valid for all
// of them.
func (ln *line[T, R]) late(timeout time.Duration) int {
	n := slices.IndexFunc(ln.entries, func(e entry[T, R]) bool { return time.Since(e.since) < timeout })
	if n < 0 {
		return len(ln.entries)
	}
	return n
}

// dissolve queues the items of a line again. l.mu is held.
func (l *Lane[T, R]) dissolve(ln *line[T, R]) {
	delete(l.slow.lines, ln.key)
	for _, e := range ln.entries {
		l.add(e)
	}
	l.goOn()
}
