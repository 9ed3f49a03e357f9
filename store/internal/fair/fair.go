// Package fair shares a number of places, such as connections, among several users: one who floods them waits behind himself.
package fair

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Places are given in turn: a free one goes to the next user who waits, and there to the call that came first. So while a call is the first one of its
// user, each other user gets at most one place before it, however many calls he has. A user who is alone can have all places, and none stays free
// while somebody waits.
type Places[U comparable] struct {
	mu   sync.Mutex
	free int
	// waiting are the calls of each user, in the order of their coming. A user without calls is not in it.
	waiting map[U][]chan struct{}
	turns   []U // the users of waiting; the first one is next

	waited    int64
	waitedFor time.Duration
}

// New makes places, at least one.
func New[U comparable](places int) *Places[U] {
	return &Places[U]{free: max(places, 1), waiting: map[U][]chan struct{}{}}
}

// Enter takes a place, or waits for one until ctx ends. If it returns nil, Leave must follow.
func (p *Places[U]) Enter(ctx context.Context, user U) error {
	p.mu.Lock()
	if p.free > 0 { // then nobody waits
		p.free--
		p.mu.Unlock()
		return nil
	}
	place := make(chan struct{})
	if len(p.waiting[user]) == 0 {
		p.turns = append(p.turns, user)
	}
	p.waiting[user] = append(p.waiting[user], place)
	p.mu.Unlock()
	defer p.count(time.Now())
	select {
	case <-place:
		return nil
	case <-ctx.Done():
	}
	if !p.leaveLine(user, place) { // the place came at the same moment
		p.Leave()
	}
	return ctx.Err()
}

// TryEnter takes a place if one is free. If it returns true, Leave must follow.
func (p *Places[U]) TryEnter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		return false
	}
	p.free--
	return true
}

func (p *Places[U]) count(since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waited++
	p.waitedFor += time.Since(since)
}

// Waiting returns how many calls of a user wait now.
func (p *Places[U]) Waiting(user U) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting[user])
}

// Waited returns how many calls have waited, and for how long in all.
func (p *Places[U]) Waited() (calls int64, all time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waited, p.waitedFor
}

// leaveLine reports whether the call still waited.
func (p *Places[U]) leaveLine(user U, place chan struct{}) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.waiting[user]
	i := slices.Index(calls, place)
	if i < 0 {
		return false
	}
	if calls = slices.Delete(calls, i, i+1); len(calls) > 0 {
		p.waiting[user] = calls
		return true
	}
	delete(p.waiting, user)
	p.turns = slices.DeleteFunc(p.turns, func(u U) bool { return u == user })
	return true
}

// Leave gives a place to whose turn it is.
func (p *Places[U]) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass()
}

// pass does that. The caller holds p.mu.
func (p *Places[U]) pass() {
	if len(p.turns) == 0 {
		p.free++
		return
	}
	user := p.turns[0]
	p.turns = slices.Delete(p.turns, 0, 1)
	calls := p.waiting[user]
	close(calls[0])
	if calls = slices.Delete(calls, 0, 1); len(calls) > 0 {
		p.waiting[user] = calls
		p.turns = append(p.turns, user)
	} else {
		delete(p.waiting, user)
	}
}
