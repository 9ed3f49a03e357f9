package locksidecar

import (
	"sync"
	"time"
)

// wireGrant is a grant, as the API answers it.
type wireGrant struct {
	Granted     bool      `json:"granted"`
	Key         string    `json:"key"`
	Token       int64     `json:"token"`
	Session     string    `json:"session"`
	Bind        Bind      `json:"bind"`
	Reentry     int       `json:"reentry"`
	ExpiresInMS int64     `json:"expires_in_ms"`
	WaitedMS    int64     `json:"waited_ms"`
	AcquiredAt  time.Time `json:"acquired_at"`
	Mode        Mode      `json:"mode"`
	Limit       int       `json:"limit"`
	Slot        *int      `json:"slot"`
	Stopping    *Stopping `json:"stopping"`
}

// grantID names a grant.
type grantID struct {
	key   string
	token int64
}

// grant is one grant of one key. All entries of its owner share it. Its end comes from the session's stream, from the answer of a
// call, or from the clock.
type grant struct {
	grantID

	lease *lease // nil: it does not belong to the session

	// telling is held while listeners are told of requests to stop, so that these come in order.
	telling sync.Mutex

	mu       sync.Mutex
	lost     *Error
	stopping *Stopping
	// early are requests to stop that came before the first listener.
	early   []Stopping
	entries []*Lock
	stopped chan struct{} // closed by the first request to stop
	expiry  *time.Timer
	// asked is when the question was sent whose answer set the expiry.
	asked time.Time
	over  bool // it was released
}

func newGrant(id grantID, l *lease) *grant {
	return &grant{grantID: id, lease: l, stopped: make(chan struct{})}
}

// enter adds an entry. The first one also gets the news from before.
func (g *grant) enter(l *Lock) {
	g.telling.Lock()
	defer g.telling.Unlock()
	g.mu.Lock()
	g.entries = append(g.entries, l)
	early, lost := g.early, g.lost
	g.early = nil
	g.mu.Unlock()
	if l.onStop != nil {
		for _, request := range early {
			l.onStop(request)
		}
	}
	if lost != nil {
		l.lose(lost)
	}
}

// leave removes an entry.
func (g *grant) leave(l *Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, other := range g.entries {
		if other == l {
			g.entries = append(g.entries[:i:i], g.entries[i+1:]...)
			return
		}
	}
}

// end notes that the lock was released.
func (g *grant) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over, g.entries = true, nil
	if g.expiry != nil {
		g.expiry.Stop()
	}
}

// lose notes a loss, and returns the first one that was noted.
func (g *grant) lose(reason, more string) *Error {
	g.mu.Lock()
	if g.lost != nil {
		defer g.mu.Unlock()
		return g.lost
	}
	g.lost = lostError(g.key, g.token, reason, more)
	lost, entries := g.lost, g.entries
	if g.over {
		entries = nil
	}
	if g.expiry != nil {
		g.expiry.Stop()
	}
	g.mu.Unlock()
	for _, l := range entries {
		l.lose(lost)
	}
	return lost
}

func (g *grant) loss() *Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lost
}

// askToStop notes a request to stop, and tells the entries.
func (g *grant) askToStop(request Stopping) {
	g.telling.Lock()
	defer g.telling.Unlock()
	g.mu.Lock()
	g.note(&request)
	entries := append([]*Lock(nil), g.entries...)
	if len(entries) == 0 {
		g.early = append(g.early, request)
	}
	g.mu.Unlock()
	for _, l := range entries {
		if l.onStop != nil {
			l.onStop(request)
		}
	}
}

// note takes a request to stop over. g.mu is held.
func (g *grant) note(request *Stopping) {
	if request != nil && g.stopping == nil {
		close(g.stopped)
	}
	if request != nil {
		g.stopping = request
	}
}

// expire sets the end of a lock without a session. It counts from the question. The answer to an older question sets nothing.
func (g *grant) expire(asked time.Time, left time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over || asked.Before(g.asked) {
		return
	}
	g.asked = asked
	if g.expiry != nil {
		g.expiry.Stop()
	}
	g.expiry = time.AfterFunc(time.Until(asked.Add(left)), func() { _ = g.lose("expired", "") })
}
