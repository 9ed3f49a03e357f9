package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// maxTopLocks limits the locks that `top` reads. For more, users need --type.
	maxTopLocks = 10_000
	// topPatience is how long an answer may take.
	topPatience = 10 * time.Second
)

// topOrders are the orders of `top`. They show likely problems first: the oldest hold, the most waiters, the
// next expiry.
var topOrders = map[string]func(a, b *client.Lock) int{
	"age":     func(a, b *client.Lock) int { return cmp.Compare(b.Holder.HeldMS, a.Holder.HeldMS) },
	"waiters": func(a, b *client.Lock) int { return cmp.Compare(b.QueueLength, a.QueueLength) },
	"expiry":  func(a, b *client.Lock) int { return cmp.Compare(a.Holder.ExpiresInMS, b.Holder.ExpiresInMS) },
	"key":     func(a, b *client.Lock) int { return cmp.Compare(a.Key, b.Key) },
	"holder":  func(a, b *client.Lock) int { return cmp.Compare(a.Holder.Name(), b.Holder.Name()) },
}

var topSorts = []string{"age", "waiters", "expiry", "key", "holder"}

type top struct {
	listFlags

	client        *client.Client
	sort, filter  string
	reverse       bool
	once, repeats bool
	interval      time.Duration
}

const topLong = `Watch the held locks of all pods of the namespace, or with --scope pod those that this sidecar
granted: their holders, how long they have been held, how many calls wait, and when they
end if they are not renewed. For a shared lock, holder and age are those of the oldest grant.
A holder that is "kept" has perhaps released the lock: its sidecar keeps it for the next session.

On a terminal, these keys work:

  up, down, j, k, PgUp, PgDn, Home, End   choose a lock
  /       filter by a part of the key or the holder: Enter keeps it, Esc ends it
  s, r    the next order; the other way round
  a       the locks of all pods, or those of this sidecar
  x       ask the holder of the chosen lock to stop, after a question
  ?       help
  q       end, as Ctrl-C does; the exit code is 0

If the output is not a terminal, or with --once, the command prints one table and ends;
with --interval it prints one table after another.`

func (a *app) topCommand() *cobra.Command {
	t := &top{listFlags: listFlags{limit: maxTopLocks}}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the held locks: who holds them, for how long, and how many wait",
		Long:  topLong,
		Example: `  locksidecar top
  locksidecar top --sort waiters --filter web-1
  locksidecar top --type backup --once
  locksidecar top --interval 10s >> locks.txt`,
		Args: exactly(0),
	}
	t.addScope(cmd)
	cmd.Flags().StringVar(&t.sort, "sort", topSorts[0], "age (the oldest first), waiters (the most first), expiry (the next first), key, or holder")
	cmd.Flags().BoolVar(&t.reverse, "reverse", false, "the other way round")
	cmd.Flags().StringVar(&t.filter, "filter", "", "only locks with this text in the key or the holder")
	cmd.Flags().StringVar(&t.kind, "type", "", "only keys of this type, the part before the first colon")
	cmd.Flags().DurationVar(&t.interval, "interval", lookInterval, "how often to look, such as 500ms or 10s")
	cmd.Flags().BoolVar(&t.once, "once", false, "print one table and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t.repeats = cmd.Flags().Changed("interval")
		if err := t.check(); err != nil {
			return err
		}
		t.client = a.newClient().WithPatience(topPatience)
		out, _ := cmd.OutOrStdout().(*os.File)
		switch {
		case t.once, !isTerminal(out) && !t.repeats:
			return t.print(cmd.OutOrStdout())
		case !isTerminal(out):
			return t.repeat(cmd.OutOrStdout(), cmd.ErrOrStderr())
		}
		return newTopScreen(t, out).run(cmd.Context())
	}
	return cmd
}

func (t *top) check() error {
	switch {
	case topOrders[t.sort] == nil:
		return usagef("--sort is %q; allowed: %s", t.sort, strings.Join(topSorts, ", "))
	case t.interval < minLookInterval:
		return badInterval(t.interval)
	case t.once && t.repeats:
		return usagef("--once and --interval do not go together")
	}
	return t.checkScope()
}

func (t *top) print(out io.Writer) error {
	list, err := t.look()
	if err != nil {
		return err
	}
	shown := t.chosen(list)
	if _, err := io.WriteString(out, t.title(list, shown)+"\n"); err != nil {
		return err
	}
	return (&alignedTable{}).write(out, topRows(shown))
}

// repeat prints tables until out cannot be written. If a sidecar does not answer, it writes a line to errOut.
func (t *top) repeat(out, errOut io.Writer) error {
	for ; ; time.Sleep(t.interval) {
		var table strings.Builder
		if err := t.print(&table); err != nil {
			tellAway(errOut, err)
			continue
		}
		if _, err := io.WriteString(out, table.String()+"\n"); err != nil {
			return err
		}
	}
}

// topList is a reading of the locks.
type topList struct {
	locks []*client.Lock
	more  bool // there are more than were read
	at    time.Time
}

func (t *top) look() (*topList, error) {
	page, err := listLocks(t.client, t.listFlags)
	if err != nil {
		return nil, err
	}
	list := &topList{more: page.NextCursor != nil, at: time.Now()}
	for _, encoded := range page.Locks {
		lock := &client.Lock{}
		if err := decode(encoded, lock); err != nil {
			return nil, err
		}
		if lock.Holder != nil {
			list.locks = append(list.locks, lock)
		}
	}
	return list, nil
}

func (t *top) title(list *topList, shown []*client.Lock) string {
	count, hint := fmt.Sprint(len(list.locks)), ""
	if list.more {
		count, hint = "more than "+count, fmt.Sprintf("\nonly the first %d by key were read: see --type", len(list.locks))
	}
	return fmt.Sprintf("locksidecar top: %s held, %d shown, at %s%s", count, len(shown), list.at.Format(time.TimeOnly), hint)
}

// chosen returns the locks in order, without those that the filter hides.
func (t *top) chosen(list *topList) (shown []*client.Lock) {
	filter := strings.ToLower(t.filter)
	for _, lock := range list.locks {
		if strings.Contains(strings.ToLower(lock.Key+"\n"+lock.Holder.Name()), filter) {
			shown = append(shown, lock)
		}
	}
	slices.SortStableFunc(shown, topOrders[t.sort]) // the API sorts them by key
	if t.reverse {
		slices.Reverse(shown)
	}
	return shown
}

// topRows are the head of the table, and a row for each lock.
func topRows(shown []*client.Lock) [][]string {
	rows := [][]string{{"KEY", "MODE", "HOLDER", "AGE", "WAITERS", "EXPIRES", "STOPPING"}}
	for _, lock := range shown {
		holder := client.Printable(lock.Holder.Name())
		if lock.Kept {
			holder += ", kept"
		}
		rows = append(rows, []string{
			client.Printable(lock.Key), lock.LockMode.String(), holder, client.Human(lock.Holder.HeldMS),
			strconv.Itoa(lock.QueueLength), client.Human(lock.Holder.ExpiresInMS), lock.Stopping.String(),
		})
	}
	return rows
}
