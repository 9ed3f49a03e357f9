package console

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/deadlock"
)

const (
	// maxWaits limits the waiting calls that are read.
	maxWaits = 10_000
	// longestShown and waitsShown limit the rows, stepsShown the lines of all circles.
	longestShown = 20
	waitsShown   = 100
	stepsShown   = 100
)

// waits is the data of the page about waiting calls.
type waits struct {
	Circles [][]step // the first ones
	// Found is the number of circles. Shown of the Stuck sessions in them are in Circles.
	Found, Shown, Stuck int

	Longest []row  // held
	Waits   []wait // by their time
	Calls   int
	More    bool // there are more calls, or more locks, than were read

	list    *list               // the reading of the locks
	callers map[who]*waitingFor // by their sessions, without owners
}

// waitingFor are the waiting calls of a session.
type waitingFor struct {
	calls   int
	longest int64
}

// step is a session of a circle.
type step struct {
	Who, Behind       *who
	Holds, Waits      string
	HeldFor, WaitsFor int64
	Others            int
}

// wait is a waiting call, and who it waits for.
type wait struct {
	ID, Key, Mode string
	Who           who
	For           int64
	Position      int
	Holder        *who
	Others        int
	Kept          bool // the holder has perhaps released it
	InCircle      bool
	Trace         string
}

// readWaits searches circles among the calls and locks that existed when it began, so all of them existed at the same
// time (see deadlock).
func (c *console) readWaits(namespace string) (*waits, error) {
	look := client.Look{Since: time.Now()}
	var calls []*client.Waiter
	next, err := c.Client.Pages("/v1/waiters", queryOf(namespace), maxWaits, func(p *client.Page) error {
		for _, encoded := range p.Waiters {
			call := &client.Waiter{}
			if err := json.Unmarshal(encoded, call); err != nil {
				return err
			}
			calls = append(calls, call)
			look.AddWaiter(call)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	read := c.listOf(listName{namespace: namespace}).after(look.Since)
	if read.err != nil {
		return nil, read.err
	}
	locks := map[string]*client.Lock{}
	for _, l := range read.value.locks {
		if look.WaitedFor(l.Key) {
			look.AddLock(l)
			locks[l.Key] = l
		}
	}
	circles := deadlock.Search(look.Keys)
	w := &waits{Found: len(circles), Calls: len(calls), More: next != nil || read.value.more, list: read.value, callers: map[who]*waitingFor{}}
	for _, call := range calls {
		w.count(call)
	}
	circular := map[deadlock.Party]bool{}
	for _, circle := range circles {
		steps := stepsOf(circle, circular)
		w.Stuck += len(steps)
		if steps = steps[:min(len(steps), stepsShown-w.Shown)]; len(steps) > 0 {
			w.Circles = append(w.Circles, steps)
			w.Shown += len(steps)
		}
	}
	w.Waits = c.longestWaits(calls, locks, circular)
	for _, l := range (choice{Sort: "held"}).of(read.value.locks) {
		if len(w.Longest) == longestShown {
			break
		}
		w.Longest = append(w.Longest, rowOf(l))
	}
	return w, nil
}

func (w *waits) count(call *client.Waiter) {
	has := at(w.callers, whoOf(call.Pod, call.Session, nil))
	has.calls++
	has.longest = max(has.longest, call.WaitingMS)
}

// stepsOf notes the members of a circle.
func stepsOf(circle []deadlock.Step, members map[deadlock.Party]bool) (steps []step) {
	for i, s := range circle {
		before := &circle[(i+len(circle)-1)%len(circle)]
		members[s.Call.Party] = true
		st := step{
			Who: partyOf(s.Call.Party), Holds: before.Key, HeldFor: before.Holder.For.Milliseconds(),
			Waits: s.Key, WaitsFor: s.Call.For.Milliseconds(), Others: s.Others,
		}
		if s.Ahead != nil {
			st.Behind = partyOf(s.Ahead.Party)
		}
		steps = append(steps, st)
	}
	return steps
}

func partyOf(p deadlock.Party) *who { return &who{p.Pod, p.Session, p.Owner} }

// longestWaits shows the calls in circles first.
func (c *console) longestWaits(calls []*client.Waiter, locks map[string]*client.Lock, circular map[deadlock.Party]bool) (shown []wait) {
	inCircle := func(w *client.Waiter) int {
		if circular[w.Party()] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(calls, func(a, b *client.Waiter) int {
		return cmp.Or(cmp.Compare(inCircle(a), inCircle(b)), cmp.Compare(b.WaitingMS, a.WaitingMS))
	})
	for _, call := range calls[:min(len(calls), waitsShown)] {
		w := c.waitOf(call)
		w.InCircle = circular[call.Party()]
		if l := locks[call.Key]; l != nil {
			holder := whoOf(l.Holder.Pod, l.Holder.Session, l.Holder.Owner)
			w.Holder, w.Others, w.Kept = &holder, l.HoldersCount-1, l.Kept
		}
		shown = append(shown, w)
	}
	return shown
}

func (c *console) waitOf(w *client.Waiter) wait {
	caller := whoOf(w.Pod, w.Session, w.Owner)
	return wait{
		ID: rowID(w.Key + "\n" + caller.Pod + "\n" + caller.Session + "\n" + caller.Owner), Key: w.Key, Mode: w.Awaited(), Who: caller,
		For: w.WaitingMS, Position: w.Position, Trace: c.traceURL(w.Traceparent),
	}
}

// waitsOf is the feed of the waiting calls of a namespace.
func (c *console) waitsOf(namespace string) *feed[*waits] {
	return feedOf(c.waits, namespace, func() (*waits, error) { return c.readWaits(namespace) })
}

func (c *console) waitsView(namespace string, _ url.Values) view {
	return view{name: "waits", title: "Waits", show: func() content {
		return seen(c.waitsOf(namespace).now(), func(w *waits) any { return w })
	}}
}
