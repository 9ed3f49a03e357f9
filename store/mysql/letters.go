package mysql

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// pollOften is the time between two looks into the mailbox while somebody waits here, pollSeldom while only a
	// lease is open: its holder may be asked to stop.
	pollOften, pollSeldom = 20 * time.Millisecond, time.Second
	// lookWithin is how long ago the last look is at most, or the instance does not rely on hearing letters.
	lookWithin    = 10 * pollOften
	lettersAtOnce = 500
	// keepLetters is how long a letter waits for its reader, keepLeases how long the row of an expired lease stays.
	keepLetters, keepLeases = 10 * time.Minute, time.Minute
	// sweepEvery is the time between two sweeps. sweepLimit is how many rows a packet deletes, sweepPause the pause after it.
	sweepEvery = 10 * time.Minute
	sweepLimit = 500
	sweepPause = 20 * time.Millisecond
)

// Post implements [cas.Backend].
func (b *Backend) Post(ctx context.Context, letters []cas.Letter) error {
	_, err := b.write(ctx, "post", func(p *packet) {
		for i := range letters {
			p.add("post", letters[i].To, letters[i].Key, letters[i].Body)
		}
	})
	return err
}

// Expect implements [cas.Expecter].
func (b *Backend) Expect(waits, leases bool) {
	every := time.Duration(0)
	switch {
	case waits:
		every = pollOften
	case leases:
		every = pollSeldom
	}
	if time.Duration(b.every.Swap(int64(every))) != every {
		select {
		case b.expected <- struct{}{}:
		default:
		}
	}
}

// listen looks into the mailbox while letters are expected.
func (b *Backend) listen(ctx context.Context, deliver func(cas.Letter), lost func()) {
	var last time.Time // of the last successful look since letters are expected
	var due time.Time  // the next look; zero: none
	for failures := 0; ; {
		every := time.Duration(b.every.Load())
		var next <-chan time.Time
		if every == 0 {
			last, due = time.Time{}, time.Time{}
		} else {
			// Calls that wait come and go. Each change may bring the look forward, but none puts it off.
			if at := time.Now().Add(min(every<<min(failures, 6), max(every, cas.LongPause))); due.IsZero() || at.Before(due) {
				due = at
			}
			next = time.After(time.Until(due))
		}
		select {
		case <-ctx.Done():
			return
		case <-b.expected:
			continue
		case <-next:
		}
		due = time.Time{}
		began := time.Now()
		if err := b.readLetters(ctx, deliver, lost); err != nil {
			failures++
			continue
		}
		if failures = 0; !last.IsZero() && began.Sub(last) > keepLetters/2 {
			lost() // the letters of a long outage may have been swept
		}
		last = began
		b.looked.Store(&began)
	}
}

// readLetters deletes all letters and delivers them. InnoDB shows what is committed before the disk has it. The deletion
// comes later in its log, so when that is confirmed, a crash of the server cannot forget what a letter tells.
func (b *Backend) readLetters(ctx context.Context, deliver func(cas.Letter), lost func()) error {
	for {
		found, _, err := b.request(ctx, b.pools.mailbox, "letters", false, true, func(p *packet) {
			p.ask("read_letters", b.config.Instance, lettersAtOnce)
		})
		if err != nil || len(found[0]) == 0 {
			return err
		}
		ids, letters := make([]int64, len(found[0])), make([]cas.Letter, len(found[0]))
		for i, row := range found[0] {
			base, err := strconv.ParseInt(string(row[2]), 10, 64)
			if err != nil {
				return errFormat
			}
			if ids[i], err = strconv.ParseInt(string(row[0]), 10, 64); err != nil {
				return errFormat
			}
			letters[i] = cas.Letter{To: b.config.Instance, Key: string(row[1]), Base: base, Body: row[3]}
		}
		if err := b.deleteLetters(ctx, ids); err != nil {
			lost() // they may be gone
			return err
		}
		for _, l := range letters {
			deliver(l)
		}
		if len(ids) < lettersAtOnce {
			return nil
		}
	}
}

// deleteLetters is not repeated if the connection breaks: a second deletion may change nothing, and its commit then waits for no disk.
func (b *Backend) deleteLetters(ctx context.Context, ids []int64) error {
	_, _, err := b.request(ctx, b.pools.mailbox, "delete_letters", true, false, func(p *packet) { p.add("delete_letters", ids) })
	return err
}

// sweep deletes old letters and expired leases from time to time, if this instance works.
func (b *Backend) sweep(ctx context.Context) {
	for cas.Pause(ctx, sweepEvery/2+rand.N(sweepEvery)) { //nolint:gosec // spreads load
		if !b.used.Swap(false) || b.Ready() != nil {
			continue
		}
		if err := b.sweepOnce(ctx); err != nil {
			b.Log.Debug("a sweep of letters and leases ended early; the next one goes on", "error", err)
		}
		b.used.Store(false) // a sweep alone is no work
	}
}

func (b *Backend) sweepOnce(ctx context.Context) error {
	for {
		found, err := b.read(ctx, "sweep", func(p *packet) {
			p.ask("old_letters", keepLetters.Microseconds(), sweepLimit)
			p.ask("old_leases", keepLeases.Microseconds(), sweepLimit)
		})
		if err != nil {
			return err
		}
		leases, err := leaseIDs(found[1])
		if err != nil {
			return err
		}
		var letters []int64
		for _, row := range found[0] {
			id, err := strconv.ParseInt(string(row[0]), 10, 64)
			if err != nil {
				return errFormat
			}
			letters = append(letters, id)
		}
		if _, err := b.write(ctx, "sweep", func(p *packet) {
			if len(letters) > 0 {
				p.add("delete_letters", letters)
			}
			if len(leases) > 0 {
				p.add("end_expired", leases)
			}
			p.add("lower_ttl", keepNote.Microseconds())
		}); err != nil {
			return err
		}
		if len(letters) < sweepLimit && len(leases) < sweepLimit || !cas.Pause(ctx, sweepPause) {
			return nil
		}
	}
}
