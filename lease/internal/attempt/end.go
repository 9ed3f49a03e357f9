package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// This is what an attempt sends to the store if it must end in a phase, for a reason:
//
//   - answer: the answer to the question under way decides. A grant that nobody wants any more is released.
//   - in turn: the attempt ends when it would be queued.
//   - cancel: once. If the cancel is not answered, see the row cancelling.
//   - withdraw: until the store has answered.
//   - withdraw, again: a second time when the store can not carry the question out any more: see withdrawFinally.
//   - release: until the store has confirmed it.
//   - nothing: the store keeps nothing of it that nobody knows of. And -: this cannot happen.
//
//	phase      | caller left | time is up | lease lost | bind:ttl: lease lost  | no answer       | late answer
//	asking     | answer      | answer     | answer     | answer                | withdraw, again | -
//	arrived    | nothing     | nothing    | in turn    | in turn               | -               | -
//	enqueuing  | answer      | answer     | withdraw   | answer                | withdraw, again | -
//	queued     | cancel      | cancel     | withdraw   | cancel                | -               | -
//	cancelling | answer      | answer     | withdraw   | answer                | withdraw, again | -
//	won        | release     | nothing    | nothing    | nothing               | -               | nothing
//	not won    | nothing     | nothing    | nothing    | nothing               | -               | withdraw, again
//
// The columns are [Attempt.Cancel], timeIsUp, leaseGone (twice), fail and comesLate. The last two rows are the phase over. TestEndings walks
// the table.
//
// A session's attempt whose lease was lost is withdrawn only if something of it outlives the lease: see outlivesLoss. Otherwise the revocation of
// the lease frees all. The same holds if its answer comes after the loss. Each withdrawal and release is repeated for as long as the store may still
// have something of the attempt: see mayHave. What an attempt that is over no longer uses, it gives up in [Attempt.end].

// Finish ends an attempt that has not won.
func (b *Attempt) Finish(err error) {
	if _, first := b.toOver(err); first {
		b.end()
	}
}

// end ends the use of queue position, arrival and lease by an attempt that is over. Its call may continue then. The attempt's
// cleanups may still be under way: see beginCleanup.
func (b *Attempt) end() {
	if b.inQueue.Load() {
		b.aq.Queue.remove(b)
	}
	if b.arrival != nil {
		b.arrival.Leave()
	}
	if b.Lease() != nil {
		b.Lease().Unpin()
	}
	b.mu.Lock()
	b.ended = true
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	b.inFlight.Done()
}

// HasEnded reports whether an attempt is over, and [Attempt.end] has run.
func (b *Attempt) HasEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Ends is closed when HasEnded is true.
func (b *Attempt) Ends() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done == nil {
		b.done = make(chan struct{})
		if b.ended {
			close(b.done)
		}
	}
	return b.done
}

// Cancel makes the attempt hand back what it has won or still wins.
func (b *Attempt) Cancel() { b.leave(callerLeft) }

// timeIsUp ends the attempt: won if it has been granted, otherwise with errTimeUp. If it only recalls the key, its time begins when it is queued.
func (b *Attempt) timeIsUp() { b.leave(timeUp) }

// leave takes the attempt out of the queue once its position is confirmed, because a cancel that reached the store before the
// enqueue would leave an orphan.
func (b *Attempt) leave(why leaving) {
	switch b.depart(why) {
	case later: // onAcquire, onEnqueue or onCancel call leave again, or end the attempt; or endRecall does
	case gone:
		b.end()
	case toCancel:
		if err := b.aq.lanes.Cancels.Submit(b.tr.Carry(context.Background()), b.Ref(), b.onCancel); err != nil {
			b.fail(err) // the sidecar stops; the waiter may get the key before the lease is revoked
		}
	case hasWon:
		if why == callerLeft {
			b.handBackWon()
		}
	case hadLeft:
	}
}

// IsUnwanted reports whether the attempt hands back what it wins.
func (b *Attempt) IsUnwanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leaving&callerLeft != 0
}

func (b *Attempt) onCancel(ans store.Answer, err error) {
	switch {
	case err != nil:
		b.fail(err)
	case ans.Outcome == store.Granted:
		b.win(&ans, b.lastSent())
	case ans.Outcome == store.Skipped: // the store has forgotten the waiter
		b.Finish(&types.SkippedError{Key: b.req.Key, Result: ans.Result})
	case ans.Outcome == store.RowLocked:
		b.fail(types.RowLocked("cancel"))
	default:
		b.mu.Lock()
		if ans.Position > 0 {
			b.position = ans.Position
		}
		err := b.whyLeftLocked()
		b.mu.Unlock()
		b.Finish(err)
	}
}

// LoseWaitsUnder ends the attempts that wait under a lost lease. Their calls make others, under another lease. It returns their number.
func (aq *Acquirer) LoseWaitsUnder(l *heartbeat.Lease) int {
	waiting := aq.Queue.WaitingUnder(l)
	for _, b := range waiting {
		b.leaseGone(l)
	}
	return len(waiting)
}

// leaseGone ends the attempt after the loss of its lease, unless it was moved. The revocation of the lease removes the waiter,
// and a session's lock that it still wins. What outlives that is withdrawn now. A question under way may be carried out after this
// withdrawal: then its answer comes late. A repeat of the request does not wait for that.
func (b *Attempt) leaseGone(l *heartbeat.Lease) {
	switch b.loseLease(l) {
	case untouched:
	case mayHaveWon:
		b.leave(leaseLost)
	case lostAll:
		if b.outlivesLoss() {
			settled := b.beginCleanup()
			b.aq.withdraw(b.tr.Carry(context.Background()), b.Ref(), b.mayHave(), func(store.Outcome) { settled() })
		}
		b.end()
	}
}

// storeLostLease ends an attempt whose lease the store does not know any more: so it is lost for all its users.
func (b *Attempt) storeLostLease() {
	if b.Lease() != nil {
		b.aq.leases.LoseUnknown(b.Lease())
	}
	b.Finish(ErrAttemptLost)
}

// fail tells what becomes of an attempt whose question was not answered.
func (b *Attempt) fail(err error) {
	// If news came first, the attempt has won. toOver decides both in one step, because otherwise the withdrawal could free a
	// delivered lock.
	was, first := b.toOver(err)
	if !first {
		if store.OutcomeUnknown(err) {
			b.comesLate()
		}
		return
	}
	// The store may have carried the question out, or still do so. So the attempt is withdrawn, in the background. A grant that other
	// calls have is theirs.
	if (store.OutcomeUnknown(err) || was == cancelling) && b.repeated == 0 {
		b.aq.obs.OutcomeUnknown(b.req.Key, b.req.Traceparent, err)
		b.aq.withdrawFinally(b.tr.Carry(context.Background()), b.Ref(), b.mayHave(), b.beginCleanup())
	}
	// The call does not wait for that. A repeat of the request does.
	b.end()
}

// comesLate withdraws an attempt again that an answer finds over: the store may have granted the lock, or queued the attempt, after the
// withdrawal. A lease that was lost early, or a MinHold, would keep the key for nobody.
func (b *Attempt) comesLate() {
	if !b.hasWon() && b.outlivesLoss() {
		b.aq.withdrawFinally(b.tr.Carry(context.Background()), b.Ref(), b.mayHave(), func() {})
	}
}

// skipped ends an attempt whose work the holder has done. The store remembers the waiter until the sidecar
// confirms.
func (b *Attempt) skipped(ans store.Answer) {
	if _, first := b.toOver(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.Ref(), b.aq.MayHave(b.Lease(), 0), b.beginCleanup())
	b.end()
}
