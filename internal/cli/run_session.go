package cli

import (
	"context"
	"errors"
	"slices"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/client"
)

// holder holds one lock, in a session of its own. Children do not inherit the session's connection, because Go opens files close-on-exec. So the
// session ends with this process.
type holder struct {
	*locksidecar.Lock

	client *locksidecar.Client
	// stops are the requests to stop.
	stops chan locksidecar.Stopping
}

// maxStops limits the requests that wait for their reader. Further ones say nothing new.
const maxStops = 64

// acquire opens a session and acquires the lock. A wait goes on through an outage of the sidecar that has answered once, such as its
// restart. With --again, run itself tries again.
func (r *runner) acquire() (*holder, error) {
	o := &r.options
	how := locksidecar.Config{Name: sessionName(o.path), TTL: o.ttl, Reconnect: outageLimit, OnOutage: func(err error) {
		r.logf("%v; waiting on", r.client.Explain(err))
	}}
	if o.again {
		how.Reconnect = -1
	}
	h := &holder{client: r.client.Holder(how), stops: make(chan locksidecar.Stopping, maxStops)}
	opts := append(slices.Clip(o.acquire.options()), locksidecar.OnStop(func(request locksidecar.Stopping) {
		select {
		case h.stops <- request:
		default:
		}
	}))
	var err error
	if h.Lock, err = h.client.Acquire(context.Background(), o.key, opts...); err != nil {
		h.close() // a grant whose answer was lost is free with the session
		return nil, r.client.Explain(err)
	}
	return h, nil
}

// outageLimit is how long a wait goes on without a sidecar.
const outageLimit = time.Minute

// releasePatience limits the time of a release, and of the end of a session, which also frees the lock. The end of this process does, too.
const releasePatience = 5 * time.Second

func (h *holder) close() { _ = inTime(h.client.Close) } // the end of this process frees what is left

func (h *holder) release(success bool) error {
	var opts []locksidecar.ReleaseOption
	switch {
	case h.Mode() == locksidecar.ModeShared: // it has no outcome
	case success:
		opts = append(opts, locksidecar.WithOutcome(locksidecar.OutcomeSuccess))
	default:
		opts = append(opts, locksidecar.WithOutcome(locksidecar.OutcomeFailure))
	}
	return inTime(func() error { return h.Release(opts...) })
}

var errNoRelease = errors.New("the sidecar does not answer")

// inTime runs a call for at most releasePatience. Then it goes on alone.
func inTime(call func() error) error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-time.After(releasePatience):
		return errNoRelease
	}
}

// lossOf reports whether an error means that the lock is not held, and the reason.
func lossOf(err error) (reason string, lost bool) {
	e, ok := errors.AsType[*locksidecar.Error](err)
	if !ok || !errors.Is(err, locksidecar.ErrLockLost) && !errors.Is(err, locksidecar.ErrNotHolder) && !errors.Is(err, locksidecar.ErrSessionEnded) {
		return "", false
	}
	switch {
	case e.Reason == "disconnected", errors.Is(err, locksidecar.ErrSessionEnded):
		return "the connection to the sidecar has ended", true
	case e.Reason == "expired":
		return "the sidecar does not answer, and the lease has ended", true
	}
	return client.Printable(e.Reason), true
}
