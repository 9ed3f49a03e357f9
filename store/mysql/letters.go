package mysql

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// keepLetters is how long a letter waits for its reader, keepLeases how long the row of an expired lease stays.
	keepLetters, keepLeases = 10 * time.Minute, time.Minute
	// sweepEvery is the time between two sweeps. sweepLimit is how many rows a packet deletes, sweepPause the pause after it.
	sweepEvery = 10 * time.Minute
	sweepLimit = 500
	sweepPause = 20 * time.Millisecond
)

// Post implements [cas.Backend].
func (b *Server) Post(ctx context.Context, letters []cas.Letter) error {
	_, err := b.write(ctx, "post", func(p *packet) {
		for i := range letters {
			p.add("post", letters[i].To, letters[i].Key, letters[i].Body)
			p.letterTo(letters[i].To)
		}
	})
	return err
}

// sweep deletes old letters and expired leases from time to time, if this instance works.
func (b *Server) sweep(ctx context.Context) {
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

func (b *Server) sweepOnce(ctx context.Context) error {
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
