package locksidecar

import (
	"context"
	"errors"
	"sync"
)

// Locker is a lock as a [sync.Locker]. Its methods have no errors, so it panics where they matter; prefer [Client.Do].
type Locker struct {
	client *Client
	key    string
	opts   []Option

	mu   sync.Mutex
	held *Lock
}

var _ sync.Locker = (*Locker)(nil)

// Locker makes no call.
func (c *Client) Locker(key string, opts ...Option) *Locker {
	return &Locker{client: c, key: key, opts: opts}
}

// Lock waits for the lock, also through outages of a sidecar that the client has reached before. It panics with the error if it can
// never get the lock: the key or an option is wrong, the client is closed, or there is no sidecar.
func (l *Locker) Lock() {
	ctx := context.Background()
	for {
		lock, err := l.client.Acquire(ctx, l.key, l.opts...)
		if err == nil {
			l.mu.Lock()
			l.held = lock
			l.mu.Unlock()
			return
		}
		if !l.client.mayReturn(ctx, err) || l.client.rest(ctx, err) != nil {
			panic(err)
		}
	}
}

// Unlock releases the lock. It panics with the error if the lock was lost, because the code before ran without it. If the sidecar does
// not answer, the release goes on in the background.
func (l *Locker) Unlock() {
	l.mu.Lock()
	lock := l.held
	l.held = nil
	l.mu.Unlock()
	if lock == nil {
		panic(invalid("%q: unlock of a lock that is not locked", l.key))
	}
	if err := lock.Release(); errors.Is(err, ErrLockLost) {
		panic(err)
	}
}

// Held is the held lock with its token, or nil.
func (l *Locker) Held() *Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}
