package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/deadlock"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const (
	// secondLook is the pause before the second look.
	secondLook = 200 * time.Millisecond
	// maxWaitingCalls limits the memory: each takes some 200 bytes.
	maxWaitingCalls = 100_000
	// circleFound is the exit code.
	circleFound = 1
)

const deadlocksLong = `Find sessions that wait for each other in a circle, so that none of them can go on:
session A holds x and waits for y, session B holds y and waits for x. It reads the
calls that wait and the locks that are held in the whole namespace, and tells each
circle. It tells it only if a second look after 200 ms still finds it.

An owner counts as a session of its own. An app whose threads share a session, and
name no owner, counts as one: another of its threads may yet release. A lock that
belongs to no session (bind:ttl) counts as one that will be released.

It changes nothing. To end a circle, end one of its calls or one of its sessions, or
break one of its locks ("release --force").

A circle is found: exit code 1. None: 0.`

func (a *app) deadlocksCommand() *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "deadlocks",
		Short: "Find sessions that wait for each other in a circle",
		Long:  deadlocksLong,
		Example: `  locksidecar deadlocks
  locksidecar deadlocks --prefix account:   # only circles of these keys
  locksidecar deadlocks > circles.txt || mail -s deadlock ops < circles.txt`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := findDeadlocks(a.newClient(), flags.prefix)
			if err != nil {
				return err
			}
			return found.tell(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	return cmd
}

// contention is what was found.
type contention struct {
	calls, keys int
	circles     [][]deadlock.Step
}

// findDeadlocks looks twice if it must. The pages of a look are not of one moment. So the second look counts only calls and locks
// that are older than itself: all of them were there when it began.
func findDeadlocks(c *client, prefix string) (found contention, err error) {
	if found, err = lookForDeadlocks(c, prefix, time.Time{}); err != nil || len(found.circles) == 0 {
		return found, err
	}
	time.Sleep(secondLook)
	return lookForDeadlocks(c, prefix, time.Now())
}

// lookForDeadlocks searches among calls and locks that were there at a time, if it is not zero.
func lookForDeadlocks(c *client, prefix string, since time.Time) (found contention, err error) {
	l := look{since: since, at: map[string]int{}}
	flags := listFlags{prefix: prefix}
	if _, err := c.pages("/v1/waiters", flags.query(), 0, l.waiters); err != nil || len(l.keys) == 0 {
		return contention{}, err
	}
	flags.scope = "all"
	if _, err := c.pages("/v1/locks", flags.query(), 0, l.locks); err != nil {
		return contention{}, err
	}
	return contention{calls: l.calls, keys: len(l.keys), circles: deadlock.Search(l.keys)}, nil
}

// look keeps the keys for which calls wait, and no other lock.
type look struct {
	since time.Time
	keys  []deadlock.Key
	at    map[string]int // indexes of keys
	calls int
}

func (l *look) old(age int64) bool { return l.since.IsZero() || ms(age) >= time.Since(l.since) }

func (l *look) waiters(p *page) error {
	for _, encoded := range p.Waiters {
		var w waiting
		if err := decode(encoded, &w); err != nil {
			return err
		}
		if l.calls++; l.calls > maxWaitingCalls {
			return exitcode.With(exitcode.Usage, fmt.Errorf("more than %d calls wait; choose some of the keys with --prefix", maxWaitingCalls))
		}
		n, known := l.at[w.Key]
		if !known {
			n = len(l.keys)
			l.at[w.Key] = n
			l.keys = append(l.keys, deadlock.Key{Name: w.Key})
		}
		if !l.old(w.WaitingMS) {
			continue
		}
		c := deadlock.Call{Party: party(w.Pod, w.Session, w.Owner), Shared: w.Mode == modeShared, For: ms(w.WaitingMS)}
		if w.Limit != nil {
			c.Limit = *w.Limit
		}
		l.keys[n].Calls = append(l.keys[n].Calls, c)
	}
	return nil
}

func (l *look) locks(p *page) error {
	for _, encoded := range p.Locks {
		var name struct {
			Key string `json:"key"`
		}
		if err := decode(encoded, &name); err != nil {
			return err
		}
		n, waitedFor := l.at[name.Key]
		if !waitedFor {
			continue
		}
		var lock lockView
		if err := decode(encoded, &lock); err != nil {
			return err
		}
		for i := range lock.Holders {
			l.held(n, &lock.Holders[i].lockHolder, true)
		}
		if lock.Holder != nil && lock.Mode != modeShared {
			l.held(n, lock.Holder, false)
		}
	}
	return nil
}

func (l *look) held(n int, h *lockHolder, shared bool) {
	if l.old(h.HeldMS) {
		hold := deadlock.Hold{Party: party(h.Pod, h.Session, h.Owner), Shared: shared, For: ms(h.HeldMS)}
		l.keys[n].Holds = append(l.keys[n].Holds, hold)
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func party(pod string, session, owner *string) deadlock.Party {
	if session == nil {
		return deadlock.Party{}
	}
	p := deadlock.Party{Pod: pod, Session: *session}
	if owner != nil {
		p.Owner = *owner
	}
	return p
}

// tell writes each circle, in plain words.
func (f *contention) tell(w io.Writer) error {
	if len(f.circles) == 0 {
		_, err := fmt.Fprintf(w, "no deadlock: %d calls wait for %d keys, and none of them in a circle\n", f.calls, f.keys)
		return err
	}
	for _, circle := range f.circles {
		fmt.Fprintf(w, "deadlock of %d:\n", len(circle))
		for i := range circle {
			before := &circle[(i+len(circle)-1)%len(circle)]
			if err := tellStep(w, &circle[i], before); err != nil {
				return err
			}
		}
	}
	return exitcode.StatusError(circleFound)
}

// tellStep writes what a session holds, for which the one before it waits, and what it waits for.
func tellStep(w io.Writer, s, before *deadlock.Step) error {
	holds := "holds"
	if before.Holder.Shared {
		holds = "shares"
	}
	text := fmt.Sprintf("  %s %s %s (for %s) and waits for %s (for %s)", name(s.Call.Party),
		holds, printable(before.Key), human(before.Holder.For.Milliseconds()), printable(s.Key), human(s.Call.For.Milliseconds()))
	if s.Call.Limit > 0 && s.Ahead == nil {
		text += fmt.Sprintf("; all %d places are taken by sessions that wait, too", s.Call.Limit)
	}
	if s.Ahead != nil {
		text += ", behind an exclusive call of " + name(s.Ahead.Party)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

func name(p deadlock.Party) string {
	if p == (deadlock.Party{}) {
		return "no session"
	}
	text := fmt.Sprintf("session %s of pod %s", printable(p.Session), printable(p.Pod))
	if p.Owner != "" {
		text = "owner " + printable(p.Owner) + " of " + text
	}
	return text
}
