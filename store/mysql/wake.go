package mysql

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// mostWakes is how many instances wait to be woken at most. The others find their letters when their sleep ends.
	mostWakes = 1000
	// refusedFor is for how long nobody is woken after the server has refused to do it.
	refusedFor = time.Minute
)

// wakes are what an instance knows of waking others when their letters are committed. See News in the package document.
type wakes struct {
	// proven is how many instances of this process have woken themselves by a packet like those of swaps. If some have, a swap's packet may wake the
	// reader of its letter.
	proven atomic.Int64
	// refused is until when the server is not asked, in nanoseconds since 1970.
	refused atomic.Int64
	// foreign: it was said that another instance has another user.
	foreign atomic.Bool

	mu    sync.Mutex
	names map[string]struct{}
	some  chan struct{}
}

func (w *wakes) init() { w.names, w.some = map[string]struct{}{}, make(chan struct{}, 1) }

// bed is the name of the lock that the session has in which an instance sleeps. It is the same for all instances of a database, and no
// other program's: it contains a hash of the database and of the instance, whose name has a random part.
func (b *Server) bed(instance string) string {
	hash := sha256.Sum256([]byte(b.target.db + "\x00" + instance))
	return "locksidecar:" + hex.EncodeToString(hash[:16]) // MySQL allows 64 characters
}

// addWake lets a packet wake the reader of its first letter, after COMMIT.
func (b *Server) addWake(p *packet) {
	if len(p.to) == 0 || b.wakes.proven.Load() == 0 && !p.proves || b.wakes.areRefused() {
		return
	}
	p.wakes = true
	p.add("committed")
	p.add("wake", b.bed(p.to[0]))
}

// others are the readers of a packet's letters that the packet has not woken.
func (p *packet) others() []string {
	if p.wakes {
		return p.to[1:]
	}
	return p.to
}

// wake wakes instances soon, by packets of their own.
func (b *Server) wake(instances ...string) {
	if len(instances) == 0 || b.wakes.areRefused() {
		return
	}
	w := &b.wakes
	w.mu.Lock()
	for _, name := range instances {
		if len(w.names) < mostWakes {
			w.names[name] = struct{}{}
		}
	}
	w.mu.Unlock()
	select {
	case w.some <- struct{}{}:
	default:
	}
}

// wakeOthers does so until ctx ends.
func (b *Server) wakeOthers(ctx context.Context) {
	w := &b.wakes
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.some:
		}
		w.mu.Lock()
		names := w.names
		w.names = map[string]struct{}{}
		w.mu.Unlock()
		wakeEach(names, func(name string) error { return b.wakeOne(ctx, name) })
	}
}

// wakeEach wakes instances. A wake whose connection broke is repeated once, on another connection, because a wake too many does no harm. If that fails
// in the same way, the server is not reached, and the sleeps of the others end by themselves.
func wakeEach(names map[string]struct{}, wake func(name string) error) {
	broke := func(err error) bool { return err != nil && number(err) == 0 }
	for name := range names {
		err := wake(name)
		if broke(err) && !errors.Is(err, context.DeadlineExceeded) {
			err = wake(name)
		}
		if broke(err) {
			return
		}
	}
}

// wakeOne sends the packet that wakes one instance.
func (b *Server) wakeOne(ctx context.Context, instance string) error {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	p := &packet{wakes: true}
	p.add("end_other")
	p.add("committed")
	p.add("wake", b.bed(instance))
	_, _, err := b.send(ctx, b.main, "wake", p)
	return err
}

// woke notes what the server said to a wake. It returns false if it may not have carried it out, and another one can succeed.
func (b *Server) woke(err error) bool {
	w := &b.wakes
	switch number(err) {
	case 0: // it did, or the connection broke
		return err == nil
	case errorInterrupted: // by an administrator
		return false
	case errorNoThread: // nobody sleeps there, and whoever polls needs no wake
	case errorNotOwner:
		if !w.foreign.Swap(true) {
			b.Log.Warn("another sidecar cannot be woken, because it uses another user of the database: it finds its news later. Give all sidecars of a database the same user")
		}
	default:
		w.refused.Store(time.Now().Add(refusedFor).UnixNano())
		b.Log.Warn("the server refuses to wake other sidecars by KILL QUERY: they find their news later", "error", harmless(err))
	}
	return true
}

func (w *wakes) areRefused() bool { return time.Now().UnixNano() < w.refused.Load() }

var errNoWake = errors.New("the server did not wake this sidecar by KILL QUERY")

// isProven notes whether this instance has woken itself.
func (b *Backend) isProven(is bool) {
	if b.proven.Swap(is) == is {
		return
	}
	if is {
		b.wakes.proven.Add(1)
	} else {
		b.wakes.proven.Add(-1)
	}
}
