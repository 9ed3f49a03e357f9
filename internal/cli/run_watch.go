package cli

import (
	"net/http"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// checkPatience is the least time for an answer. For a short TTL it is half of the TTL: with a check every
	// third of the TTL, a loss is known when the lease ends.
	checkPatience = time.Second
	// lastLook is the last part of that time, after the deadline. This process may have been stopped past the
	// deadline, with an unread answer.
	lastLook      = 250 * time.Millisecond
	minCheckPause = 50 * time.Millisecond
)

// watch is how the supervisor learns whether the lock is held. Usually the event stream reports a loss. A sidecar
// that is stopped or does not answer reports nothing, but its lease ends nevertheless. So the supervisor asks three
// times in a TTL. The lock is lost if the lease has ended by the supervisor's clock without an answer.
type watch struct {
	events  <-chan sessionEvent // nil after a loss
	answers chan checkAnswer
	asking  bool // a check is under way
	check   *time.Timer
	// deadline runs from the begin of a check to the next answer that says "held".
	deadline *time.Timer
	armed    bool
	late     bool // the deadline has passed, and lastLook runs
}

type checkAnswer struct {
	lease  grantAnswer
	sentAt time.Time
	err    error
}

func newWatch(l *heldLock) watch {
	deadline := time.NewTimer(time.Hour)
	deadline.Stop()
	return watch{events: l.session.events, answers: make(chan checkAnswer, 1), check: time.NewTimer(l.pause()), deadline: deadline}
}

func (w *watch) end() {
	w.events = nil
	w.check.Stop()
	w.deadline.Stop()
}

// pause is the time to the next check: a third of the TTL, or less near the end of the lease.
func (l *heldLock) pause() time.Duration {
	return max(minCheckPause, min(l.session.ttl/3, time.Until(l.until)/2))
}

// begin begins a check, unless one runs. The deadline counts from now at the earliest, because this process may
// itself have been stopped past the lease's end.
func (s *supervisor) begin() {
	if s.asking {
		return
	}
	s.asking = true
	if !s.armed {
		s.armed, s.late = true, false
		least := min(checkPatience, s.lock.session.ttl/2)
		s.deadline.Reset(max(time.Until(s.lock.until), least) - lastLook)
	}
	go func() {
		a := checkAnswer{sentAt: time.Now()}
		body := map[string]int64{"token": s.lock.token}
		a.err = s.lock.session.call(http.MethodPatch, client.LockPath(s.lock.key), body, &a.lease, 0, client.AnswerTimeout)
		s.answers <- a
	}()
}

func (s *supervisor) expire() {
	if s.late {
		s.lose("the sidecar does not answer, and the lease has ended")
		return
	}
	s.late = true
	s.deadline.Reset(lastLook)
}

func (s *supervisor) hear(e sessionEvent, open bool) {
	switch {
	case !open:
		s.lose("the connection to the sidecar has ended")
	case e.Key != s.lock.key || e.Token != s.lock.token:
	case e.name == "lost":
		s.lose(e.Reason)
	case e.name == "stop":
		s.askToStop(e.Reason)
	}
}

// judge handles an answer. If the answer does not say whether the lock is held (no store), another check
// follows in time.
func (s *supervisor) judge(a checkAnswer) {
	s.asking = false
	reason, lost := lossOf(a.err)
	switch {
	case s.lost:
		return
	case lost:
		s.lose(reason)
		return
	case a.err == nil:
		s.lock.until = a.sentAt.Add(expiry(a.lease))
		s.deadline.Stop()
		s.armed = false
	}
	s.check.Reset(s.lock.pause())
}
