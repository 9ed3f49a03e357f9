package console

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// rest is the least time between two readings of the same.
const rest = 250 * time.Millisecond

// feed is something that the sidecar is asked for repeatedly, once for all viewers. It asks only when a viewer wants it.
type feed[T any] struct {
	read func() (T, error)
	// rest is the least time between two readings; zero: the constant.
	rest time.Duration

	mu   sync.Mutex // held during a reading, so that the others wait for the same answer
	last reading[T]
	took time.Duration
}

// reading is an answer of the sidecar.
type reading[T any] struct {
	value T
	// asked is when the sidecar was asked last, seen when value was read; zero: never.
	asked, seen time.Time
	err         error // the reason why value is older than asked
}

// now is a reading that is as new as the rest allows. The rest begins when a reading ends, so that all who have waited for
// a slow one take it. It is as long as the reading took, at least.
func (f *feed[T]) now() reading[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since(time.Now().Add(-f.took - max(f.rest, rest, f.took)))
}

// after is a reading that began after a time.
func (f *feed[T]) after(t time.Time) reading[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since(t)
}

func (f *feed[T]) since(t time.Time) reading[T] {
	if !f.last.asked.IsZero() && !f.last.asked.Before(t) {
		return f.last
	}
	began := time.Now()
	value, err := f.read()
	f.last.asked, f.last.err, f.took = began, err, time.Since(began)
	if err == nil {
		f.last.value, f.last.seen = value, began
	}
	return f.last
}

// feedOf is the feed with a name, made if it is not known.
func feedOf[Name comparable, T any](known *lru.Cache[Name, *feed[T]], name Name, read func() (T, error)) *feed[T] {
	if f, ok := known.Get(name); ok {
		return f
	}
	made := &feed[T]{read: read}
	if f, ok, _ := known.PeekOrAdd(name, made); ok {
		return f
	}
	return made
}
