package locksidecar

import (
	"context"
	"slices"
)

// Semaphore is a key with at most so many holders in all pods. A permit is a [Lock] with a slot.
type Semaphore struct {
	client *Client
	key    string
	opts   []Option
}

// Semaphore makes no call. All that use the key name the same limit, 1 to 1000, or get ErrLimitMismatch.
func (c *Client) Semaphore(key string, most int, opts ...Option) *Semaphore {
	return &Semaphore{c, key, append(slices.Clip(opts), Shared(), Limit(most))}
}

// Acquire waits for a permit, as [Client.Acquire].
func (s *Semaphore) Acquire(ctx context.Context, opts ...Option) (*Lock, error) {
	return s.client.Acquire(ctx, s.key, s.with(opts)...)
}

// TryAcquire gets a permit without a wait, as [Client.TryAcquire].
func (s *Semaphore) TryAcquire(ctx context.Context, opts ...Option) (permit *Lock, ok bool, err error) {
	return s.client.TryAcquire(ctx, s.key, s.with(opts)...)
}

// Do runs a function with a permit, as [Client.Do].
func (s *Semaphore) Do(ctx context.Context, run func(ctx context.Context, permit *Lock) error, opts ...Option) error {
	return s.client.Do(ctx, s.key, run, s.with(opts)...)
}

func (s *Semaphore) with(opts []Option) []Option {
	return append(slices.Clip(opts), s.opts...)
}
