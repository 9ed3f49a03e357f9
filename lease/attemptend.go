package lease

// How an attempt ends.

// finish ends an attempt that has not won.
func (b *attempt) finish(err error) {
	if _, first := b.close(err); first {
		b.end()
	}
}

// close makes the attempt be over without a win, and reports in which phase it was,
// and whether it was not over before.
func (b *attempt) close(err error) (was phase, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == over {
		return over, false
	}
	was, b.phase, b.err = b.phase, over, err
	return was, true
}

// cleanedUp is closed when nothing can change the store any more on the attempt's behalf.
func (b *attempt) cleanedUp() <-chan struct{} {
	settled := make(chan struct{})
	go func() {
		b.inFlight.Wait()
		close(settled)
	}()
	return settled
}

// end lets go of what an attempt keeps: its place in the books, its lease.
func (b *attempt) end() {
	b.arrival.leave()
	if b.inQueue.Load() {
		b.aq.queue.remove(b)
	}
	if b.lease() != nil {
		b.lease().unpin()
	}
	b.mu.Lock()
	b.ended = true
	if b.done != nil {
		close(b.done)
	}
	b.mu.Unlock()
	b.inFlight.Done()
}

// isOver reports whether an attempt is over, and has ended.
func (b *attempt) isOver() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// ends is closed when it is.
func (b *attempt) ends() <-chan struct{} {
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

// unwant makes an attempt hand back what it wins.
func (b *attempt) unwant() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unwanted = true
}

func (b *attempt) isUnwanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unwanted
}
