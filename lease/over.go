package lease

// How a bid ends.

// finish ends a bid that has not won.
func (b *bid) finish(err error) {
	if _, first := b.close(err); first {
		b.end()
	}
}

// close makes the bid be over without a win, and reports in which phase it was,
// and whether it was not over before.
func (b *bid) close(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}

// settled is closed when nothing can change the store any more on the bid's behalf.
func (b *bid) settled() <-chan struct{} {
	settled := make(chan struct{})
	go func() {
		b.loose.Wait()
		close(settled)
	}()
	return settled
}

// end lets go of what a bid keeps: its place in the books, its lease.
func (b *bid) end() {
	b.arrival.leave()
	if b.lined.Load() {
		b.m.queue.remove(b)
	}
	if b.lease != nil {
		b.lease.unpin()
	}
	b.mu.Lock()
	b.ended = true
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	b.loose.Done()
}

// isOver reports whether a bid is over, and has ended.
func (b *bid) isOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// ends is closed when it is.
func (b *bid) ends() <-chan struct{} {
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
