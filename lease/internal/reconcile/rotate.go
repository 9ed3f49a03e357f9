package reconcile

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// moveMax limits the locks and waits that one statement moves, with their rows locked. The pause after a
	// statement is moveRest times its duration.
	moveMax  = 200
	moveRest = 4
)

// Rotate moves the locks and waits of a retired lease, until the lease is closed or lost. It pauses first,
// because most of them end soon.
func (rc *Reconciler) Rotate(old *heartbeat.Lease) {
	for clock.Rest(rc.ctx, clock.Jittered(rc.pause)) == nil && rc.leases.Retired(old) {
		moves := rc.movesFrom(old)
		if len(moves) > 0 && !rc.moveAll(old, moves) && rc.ctx.Err() == nil {
			rc.leases.LoseOverdue(old)
		}
	}
}

type move struct {
	h *holdings.Lock
	b *attempt.Attempt // a wait; nil for a lock
}

// movesFrom returns the locks and waits under a lease. The caller must call done on each.
func (rc *Reconciler) movesFrom(old *heartbeat.Lease) (moves []move) {
	for _, h := range rc.holdings.On(old) {
		moves = append(moves, move{h: h})
	}
	for _, b := range rc.acquirer.Queue.WaitingUnder(old) {
		if b.BeginMove() {
			moves = append(moves, move{b: b})
		}
	}
	return moves
}

// moveAll moves to the new lease for the TTL. It returns false if the new lease was lost before the store answered,
// because the places of the locks are then unknown. Until the answer, the old lease is trusted only while both are.
func (rc *Reconciler) moveAll(old *heartbeat.Lease, moves []move) (known bool) {
	to := rc.leases.Pin(rc.ctx, old.TTL())
	defer to.Unpin()
	select {
	case <-to.Opened():
	case <-rc.ctx.Done():
	}
	left := moves
	defer func() {
		for _, mv := range left {
			mv.done()
		}
	}()
	if !to.Alive(clock.Read(rc.clk)) {
		return true // the store was not asked; the next round moves
	}
	old.MoveTo(to)
	for len(left) > 0 {
		some := left[:min(moveMax, len(left))]
		began := rc.clk.Now()
		states, err := rc.move(old, to, some)
		if err != nil {
			return false
		}
		for i, mv := range some {
			mv.apply(rc, states[i], to)
		}
		left = left[len(some):]
		if len(left) > 0 && clock.Rest(rc.ctx, moveRest*rc.clk.Now().Sub(began)) != nil {
			break
		}
	}
	old.Moved()
	return true
}

// move asks the store until it answers, or the new lease is lost. An earlier call with an unknown outcome
// may itself keep a row locked, and may still be committed.
func (rc *Reconciler) move(old, to *heartbeat.Lease, some []move) ([]store.ClaimStatus, error) {
	moves := make([]store.Move, len(some))
	for i, mv := range some {
		moves[i] = mv.ask()
	}
	for unknown := false; ; {
		ctx, cancel := context.WithTimeout(rc.ctx, rc.timeout)
		states, err := rc.mover.Move(ctx, old.ID(), to.ID(), moves)
		cancel()
		if err == nil && unknown && slices.Contains(states, store.ClaimRowLocked) {
			err = types.RowLocked("move")
		}
		if err == nil {
			return states, nil
		}
		unknown = unknown || store.OutcomeUnknown(err)
		rc.log.Debug("locks and waits not moved to the fresh lease, trying again", "error", err)
		if !to.Alive(clock.Read(rc.clk)) || clock.Rest(rc.ctx, clock.Jittered(clock.RetryPause)) != nil {
			return nil, err
		}
	}
}

func (mv move) ask() store.Move {
	if mv.b != nil {
		return store.Move{Attempt: mv.b.Ref()}
	}
	return store.Move{Attempt: store.Attempt{Key: mv.h.Key}, Token: mv.h.Token}
}

func (mv move) done() {
	if mv.b != nil {
		mv.b.EndMove()
	}
}

// apply processes the store's answer. A moved lock that ended here is freed: see the package document.
func (mv move) apply(rc *Reconciler, state store.ClaimStatus, to *heartbeat.Lease) {
	switch moved := state == store.Holds; {
	case mv.b != nil && moved:
		mv.b.Moved(to, mv.done)
	case mv.b != nil:
		mv.done() // its next check finds the lease
	case moved && !mv.h.Moved(to):
		if attempt.HandedOn(mv.h) {
			return // the next lock of its cohort is moved with the next round
		}
		c := mv.h.Claim()
		c.Lease = to.ID()
		rc.acquirer.ReleaseMoved(mv.h, c, to, func() {})
	case moved, state == store.Expired, state == store.ClaimRowLocked: // the last two are tried again
	case mv.h.Lose(types.LostStore):
		rc.log.Error("lock lost: the promoted database server does not have it", "key", mv.h.Key, "token", mv.h.Token)
	}
}
