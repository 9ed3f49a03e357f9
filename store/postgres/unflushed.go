package postgres

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// maxUnflushed limits the releases that a crash of the server could forget. Above it, releases are flushed.
	maxUnflushed = 4096
	// resendMax limits the releases that one call repeats.
	resendMax = 500
)

// unflushed contains the releases that were confirmed and perhaps not flushed: see Releases in doc.go. A
// later flushed commit shows that they are durable. Only a crash of the server or a failover can forget
// them. Both break all connections. So when a connection is made, the remaining releases are repeated. If
// none was forgotten, the repeats change nothing.
type unflushed struct {
	mu sync.Mutex
	// connected is when the last connection was made.
	connected time.Time
	// since were sent after that, in the order of their confirmations.
	since []confirmed
	// doubtful were sent before that and must be repeated, by view and key.
	doubtful map[releasedBy]store.Claim
	wake     chan struct{} // has an element if there may be doubtful ones
}

type confirmed struct {
	by    *Store
	claim store.Claim
	at    time.Time
}

// releasedBy names a released key.
type releasedBy struct {
	view *Store
	key  string
}

func newUnflushed() *unflushed {
	return &unflushed{doubtful: make(map[releasedBy]store.Claim), wake: make(chan struct{}, 1)}
}

// hasRoom reports whether more releases may stay unflushed.
func (u *unflushed) hasRoom(more int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.since)+len(u.doubtful)+more <= maxUnflushed
}

// add records releases of one statement of a view that are confirmed now. If a connection was made since the
// statement was sent, the server may have crashed meanwhile.
func (u *unflushed) add(by *Store, claims []store.Claim, sent time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for _, c := range claims {
		u.since = append(u.since, confirmed{by, c, now})
	}
	if !sent.After(u.connected) {
		u.doubtLocked()
	}
}

// flushed drops the releases that were confirmed before a flushed statement was sent. The server did not
// crash in between, because the statement's connection was made before these releases were sent.
func (u *unflushed) flushed(sent time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for n < len(u.since) && u.since[n].at.Before(sent) {
		n++
	}
	u.since = slices.Delete(u.since, 0, n)
}

// madeConnection makes all releases doubtful, because the server may have crashed.
func (u *unflushed) madeConnection() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.connected = time.Now()
	u.doubtLocked()
}

func (u *unflushed) doubtLocked() {
	if len(u.since) == 0 {
		return
	}
	for _, r := range u.since { // a later grant of a key was flushed with the release before it
		u.doubtful[releasedBy{r.by, r.claim.Key}] = r.claim
	}
	u.since = nil
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// someDoubtful returns releases that must be repeated, by view.
func (u *unflushed) someDoubtful() map[*Store][]store.Claim {
	u.mu.Lock()
	defer u.mu.Unlock()
	found := make(map[*Store][]store.Claim)
	for released, c := range u.doubtful {
		if claims := found[released.view]; len(claims) < resendMax {
			found[released.view] = append(claims, c)
		}
	}
	return found
}

// resent drops a release that was repeated with a flush.
func (u *unflushed) resent(by *Store, c store.Claim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if released := (releasedBy{by, c.Key}); u.doubtful[released].Token == c.Token {
		delete(u.doubtful, released)
	}
}

// forget drops the releases of a view that has ended. Its leases end, too.
func (u *unflushed) forget(view *Store) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.since = slices.DeleteFunc(u.since, func(r confirmed) bool { return r.by == view })
	maps.DeleteFunc(u.doubtful, func(released releasedBy, _ store.Claim) bool { return released.view == view })
}

// resend repeats doubtful releases until ctx ends.
func (s *Space) resend(ctx context.Context) {
	pause := firstPause
	for {
		var later <-chan time.Time
		doubtful, some := s.unflushed.someDoubtful(), false
		for view, claims := range doubtful {
			some = view.releaseAgain(ctx, claims) || some
		}
		switch {
		case len(doubtful) == 0:
			pause = firstPause
		case some:
			pause = firstPause
			continue
		default:
			later = time.After(pause)
			pause = min(2*pause, longPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.unflushed.wake:
		case <-later:
		}
	}
}

// releaseAgain repeats releases with a flush, and reports whether any of them is now known to be durable.
func (s *Store) releaseAgain(ctx context.Context, claims []store.Claim) (some bool) {
	verdicts, err := s.releaseFlushed(ctx, claims)
	if err != nil {
		s.log.Debug("releases that a crash of the server may have forgotten could not be repeated, trying again", "releases", len(claims), "error", err)
		return false
	}
	forgotten := 0
	for i, v := range verdicts {
		if v.Status == store.ClaimRowLocked {
			continue
		}
		some = true
		s.unflushed.resent(s, claims[i])
		if v.Status == store.Holds {
			forgotten++
		}
	}
	if forgotten > 0 {
		s.log.Warn("the database server had forgotten releases, by a crash or a failover; the sidecar has repeated them", "releases", forgotten)
	}
	return some
}
