package pgproxy

import (
	"strings"
	"sync"
)

// Stage is a moment in the life of a statement.
type Stage int

const (
	// BeforeSend: the client has sent the statement, the server does not have it.
	// After a cut it never gets it.
	BeforeSend Stage = iota
	// AfterSend: the server has all that it needs to carry the statement out. After
	// a cut it does, but the client hears no answer.
	AfterSend
	// AfterCommandComplete: the client has the rows and CommandComplete. After a cut
	// it never gets the ReadyForQuery that confirms the commit.
	AfterCommandComplete
)

func (s Stage) String() string {
	return [...]string{"before send", "after send", "after command complete"}[s]
}

// Cut describes a fault: the connection on which a statement runs is closed.
type Cut struct {
	Statement string // its name
	Stage     Stage
	Times     int    // how often; 0 means once
	Do        func() // when not nil: runs first
}

// Hook is something that happens at a stage of a statement.
type Hook struct {
	statement string
	stage     Stage
	do        func()
	cut       bool

	mu    sync.Mutex
	left  int // how often it may still fire; negative: always
	fired int
	done  chan struct{}
}

// Fired is how often the hook has fired.
func (h *Hook) Fired() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fired
}

// Done is closed when the hook has fired for the first time.
func (h *Hook) Done() <-chan struct{} { return h.done }

// Disarm ends the fault: it fires no more.
func (h *Hook) Disarm() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = 0
}

func (h *Hook) armed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.left != 0
}

// claims says whether the hook fires now.
func (h *Hook) claims(sql string, stage Stage) bool {
	if stage != h.stage || !strings.HasPrefix(sql, "/* locksidecar:"+h.statement+" */") {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left == 0 {
		return false
	}
	h.left--
	return true
}

// fire does what the hook is for, and counts it.
func (h *Hook) fire() {
	if h.do != nil {
		h.do()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fired++; h.fired == 1 {
		close(h.done)
	}
}
