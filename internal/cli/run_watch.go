package cli

import (
	"context"
	"net/http"
	"time"
)

// news is what happens to a held lock.
type news struct {
	kind   newsKind
	reason string
}

type newsKind int

const (
	newsLost newsKind = iota
	newsStop
)

const (
	// checkPatience is the least time for an answer, or half of a short TTL: with a check every third,
	// a loss is known when the lease ends.
	checkPatience = time.Second
	// lastLook is the last part of that, after the deadline: this process may have been stopped past
	// it, with an answer unseen.
	lastLook      = 250 * time.Millisecond
	minCheckPause = 50 * time.Millisecond
)

// watcher tells what happens to a lock, mostly from the event stream. A sidecar that has been stopped,
// or hangs, says nothing, and its lease ends all the same. So the watcher asks three times in a TTL.
// The lock is lost when the lease has ended by the watcher's clock without an answer.
type watcher struct {
	lock *heldLock
	news chan news

	answers chan checkAnswer
	asking  bool // a check is under way
	check   *time.Timer
	// deadline is armed from a check's begin to the next answer that says "held".
	deadline *time.Timer
	armed    bool
	late     bool // the deadline has passed, lastLook is under way
}

type checkAnswer struct {
	lease  leaseAnswer
	sentAt time.Time
	err    error
}

func (l *heldLock) watch(ctx context.Context) *watcher {
	w := &watcher{lock: l, news: make(chan news), answers: make(chan checkAnswer, 1)}
	go w.run(ctx)
	return w
}

func (w *watcher) run(ctx context.Context) {
	w.check, w.deadline = time.NewTimer(w.pause()), time.NewTimer(time.Hour)
	defer w.check.Stop()
	defer w.deadline.Stop()
	w.deadline.Stop()
	for {
		n, tell := w.next(ctx)
		if ctx.Err() != nil {
			return
		}
		if !tell {
			continue
		}
		select {
		case w.news <- n:
		case <-ctx.Done():
			return
		}
		if n.kind == newsLost {
			return
		}
	}
}

// next waits for the next thing to happen. tell: it is news.
func (w *watcher) next(ctx context.Context) (n news, tell bool) {
	select {
	case <-ctx.Done():
	case e, open := <-w.lock.session.events:
		return w.heard(e, open)
	case <-w.check.C:
		w.begin()
	case <-w.deadline.C:
		if w.late {
			return news{newsLost, "the sidecar does not answer, and the lease has ended"}, true
		}
		w.late = true
		w.deadline.Reset(lastLook)
	case a := <-w.answers:
		return w.judge(a)
	}
	return news{}, false
}

// begin begins a check, if none is under way. The deadline counts from now at the earliest: it is no
// fault of the sidecar if this process was stopped past the lease's end.
func (w *watcher) begin() {
	if w.asking {
		return
	}
	w.asking = true
	if !w.armed {
		w.armed, w.late = true, false
		least := min(checkPatience, w.lock.session.ttl/2)
		w.deadline.Reset(max(time.Until(w.lock.until), least) - lastLook)
	}
	go w.send()
}

// pause is the time to the next check: a third of the TTL, less near the end of the lease.
func (w *watcher) pause() time.Duration {
	return max(minCheckPause, min(w.lock.session.ttl/3, time.Until(w.lock.until)/2))
}

func (w *watcher) heard(e sessionEvent, open bool) (news, bool) {
	if !open {
		return news{newsLost, "the connection to the sidecar has ended"}, true
	}
	if e.Key != w.lock.key || e.Token != w.lock.token {
		return news{}, false
	}
	reason := ""
	if e.Reason != nil {
		reason = *e.Reason
	}
	switch e.name {
	case "lost":
		return news{newsLost, reason}, true
	case "stop":
		return news{newsStop, reason}, true
	}
	return news{}, false
}

// judge handles an answer. If it says nothing about the lock (no store), another check follows in time.
func (w *watcher) judge(a checkAnswer) (n news, tell bool) {
	w.asking = false
	if reason, lost := lossOf(a.err); lost {
		return news{newsLost, reason}, true
	}
	if a.err == nil {
		w.lock.until = a.sentAt.Add(expiry(a.lease))
		w.deadline.Stop()
		w.armed = false
	}
	w.check.Reset(w.pause())
	return news{}, false
}

func (w *watcher) send() {
	a := checkAnswer{sentAt: time.Now()}
	body := map[string]int64{"token": w.lock.token}
	a.err = w.lock.session.call(http.MethodPatch, lockPath(w.lock.key), body, &a.lease, 0, answerTimeout)
	w.answers <- a
}
