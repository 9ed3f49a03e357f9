package pgproxy

import (
	"strings"
	"sync"
)

// Stage is a stage in the execution of a statement.
type Stage int

const (
	// BeforeSend: the client has sent the statement, but the server does not have it. After a cut,
	// the server does not get it.
	BeforeSend Stage = iota
	// AfterSend: the server can carry the statement out. After a cut it does so, but the client
	// gets no answer.
	AfterSend
	// AfterCommandComplete: the client has the rows and CommandComplete. After a cut it does not
	// get the ReadyForQuery that confirms the commit.
	AfterCommandComplete
)

func (s Stage) String() string {
	return [...]string{"before send", "after send", "after command complete"}[s]
}

// Cut describes a fault: the connection of a statement is closed.
type Cut struct {
	Statement string // name of the statement
	Stage     Stage
	Times     int    // number of cuts; 0 means once
	Do        func() // runs before the cut if it is not nil
}

// Hook is a function at a stage of a statement.
type Hook struct {
	statement string
	stage     Stage
	do        func()
	cut       bool

	mu    sync.Mutex
	left  int // remaining number of calls; negative: no limit
	fired int
	done  chan struct{}
}

// Fired returns how often the hook has fired.
func (h *Hook) Fired() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fired
}

// Done returns a channel that is closed when the hook has fired for the first time.
func (h *Hook) Done() <-chan struct{} { return h.done }

// Disarm ends the hook.
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

// claims reports whether the hook fires now.
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

// fire runs the hook and counts that.
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
