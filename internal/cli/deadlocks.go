package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/deadlock"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const (
	// secondLook is the pause before the second reading.
	secondLook = 200 * time.Millisecond
	// maxWaitingCalls limits the memory, about 200 bytes for each call.
	maxWaitingCalls = 100_000
	// circleFound is the exit code if there is a deadlock.
	circleFound = 1
)

const deadlocksLong = `Find sessions that wait for each other in a circle, so that all of them are blocked:
session A holds x and waits for y, session B holds y and waits for x. The command reads the
waiting calls and the held locks of the whole namespace, and prints each circle that it
still finds in a second reading after 200 ms.

Each owner counts as a separate session. An app whose threads share a session without
owners counts as one session, because another thread may still release the lock. A lock
without a session (bind:ttl) counts as a lock that will be released.

The command changes nothing. To end a circle, end one of its calls or sessions, or break one
of its locks ("release --force").

The exit code is 1 if there is a circle, and otherwise 0.`

func (a *app) deadlocksCommand() *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "deadlocks",
		Short: "Find sessions that wait for each other in a circle",
		Long:  deadlocksLong,
		Example: `  locksidecar deadlocks
  locksidecar deadlocks --prefix account:   # only circles of these keys
  locksidecar deadlocks -o json | jq -r '.deadlocks[][].session'
  locksidecar deadlocks > circles.txt || mail -s deadlock ops < circles.txt`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := findDeadlocks(a.newClient(), flags.prefix)
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return found.writeJSON(cmd.OutOrStdout())
			}
			return found.tell(cmd.OutOrStdout())
		},
	}
	addOutput(cmd, "one document")
	cmd.Flags().StringVar(&flags.prefix, "prefix", "", "only keys that begin with it")
	return cmd
}

// contention is the result of the search.
type contention struct {
	calls, keys int
	circles     [][]deadlock.Step
}

// findDeadlocks reads twice if the first reading shows a deadlock, because its pages are from different
// moments. The second reading counts only calls and locks that are older than its own start, so all of them
// existed at that time.
func findDeadlocks(c *client.Client, prefix string) (found contention, err error) {
	if found, err = lookForDeadlocks(c, prefix, time.Time{}); err != nil || len(found.circles) == 0 {
		return found, err
	}
	time.Sleep(secondLook)
	return lookForDeadlocks(c, prefix, time.Now())
}

// lookForDeadlocks searches among the calls and locks that existed at the time since, or all if it is zero.
func lookForDeadlocks(c *client.Client, prefix string, since time.Time) (found contention, err error) {
	l := client.Look{Since: since}
	flags := listFlags{prefix: prefix}
	if _, err := c.Pages("/v1/waiters", flags.query(), 0, func(p *client.Page) error { return found.readWaiters(&l, p) }); err != nil || len(l.Keys) == 0 {
		return contention{}, err
	}
	flags.scope = scopeAll
	if _, err := c.Pages("/v1/locks", flags.query(), 0, func(p *client.Page) error { return readLocks(&l, p) }); err != nil {
		return contention{}, err
	}
	found.keys, found.circles = len(l.Keys), deadlock.Search(l.Keys)
	return found, nil
}

func (f *contention) readWaiters(l *client.Look, p *client.Page) error {
	for _, encoded := range p.Waiters {
		var w client.Waiter
		if err := decode(encoded, &w); err != nil {
			return err
		}
		if f.calls++; f.calls > maxWaitingCalls {
			return exitcode.With(exitcode.Usage, fmt.Errorf("more than %d calls wait; choose some of the keys with --prefix", maxWaitingCalls))
		}
		l.AddWaiter(&w)
	}
	return nil
}

// readLocks reads in full only the locks of keys that calls wait for.
func readLocks(l *client.Look, p *client.Page) error {
	for _, encoded := range p.Locks {
		var name struct {
			Key string `json:"key"`
		}
		if err := decode(encoded, &name); err != nil {
			return err
		}
		if !l.WaitedFor(name.Key) {
			continue
		}
		var lock client.Lock
		if err := decode(encoded, &lock); err != nil {
			return err
		}
		l.AddLock(&lock)
	}
	return nil
}

// tell writes each circle as text.
func (f *contention) tell(w io.Writer) error {
	if len(f.circles) == 0 {
		_, err := fmt.Fprintf(w, "no deadlock: %d calls wait for %d keys, but not in a circle\n", f.calls, f.keys)
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

// tellStep writes the key that a session holds and the previous session waits for, and the key that it waits
// for itself.
func tellStep(w io.Writer, s, before *deadlock.Step) error {
	holds := "holds"
	if before.Holder.Shared {
		holds = "shares"
	}
	text := fmt.Sprintf("  %s %s %s (for %s) and waits for %s (for %s)", name(s.Call.Party),
		holds, client.Printable(before.Key), client.Human(before.Holder.For.Milliseconds()), client.Printable(s.Key), client.Human(s.Call.For.Milliseconds()))
	if s.Call.Limit > 0 && s.Ahead == nil {
		text += fmt.Sprintf("; all %d permits are held by sessions that also wait", s.Call.Limit)
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
	text := fmt.Sprintf("session %s of pod %s", client.Printable(p.Session), client.Printable(p.Pod))
	if p.Owner != "" {
		text = "owner " + client.Printable(p.Owner) + " of " + text
	}
	return text
}
