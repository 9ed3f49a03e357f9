package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// maxTopLocks limits the locks that `top` reads. For more, users need --type.
	maxTopLocks = 10_000
	// minTopInterval is the shortest --interval, because each interval reads all shown locks.
	minTopInterval = 100 * time.Millisecond
	// topPatience is how long an answer may take.
	topPatience = 10 * time.Second
)

// Control sequences of terminals. Without wrapping, a long line is cut at the terminal's edge.
const (
	topOfScreen = "\x1b[H\x1b[?7l"
	endOfScreen = "\x1b[J\x1b[?7h"
	clearToEnd  = "\x1b[K" // of the line
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
	client        *client.Client
	list          listFlags
	sort, filter  string
	all, reverse  bool
	once, repeats bool
	interval      time.Duration
}

func (a *app) topCommand() *cobra.Command {
	t := &top{list: listFlags{scope: "pod", limit: maxTopLocks}}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the held locks: who holds them, for how long, and how many wait",
		Long: `Watch the locks that this pod's sidecar granted, or those of all pods of the
namespace: their holders, how long they have been held, how many calls wait, and when they
end if they are not renewed. For a shared lock, holder and age are those of the oldest
grant. Ctrl-C ends the command.

If the output is not a terminal, or with --once, the command prints one table and ends;
with --interval it prints one table after another.`,
		Example: `  locksidecar top
  locksidecar top --all --sort waiters
  locksidecar top --all --type backup --filter web-1 --once
  locksidecar top --all --interval 10s >> locks.txt`,
		Args: exactly(0),
	}
	cmd.Flags().BoolVar(&t.all, "all", false, "the locks of all pods of the namespace (default: those granted by this sidecar)")
	cmd.Flags().StringVar(&t.sort, "sort", "age", "key, holder, age (the oldest first), waiters (the most first), or expiry (the next first)")
	cmd.Flags().BoolVar(&t.reverse, "reverse", false, "the other way round")
	cmd.Flags().StringVar(&t.filter, "filter", "", "only locks with this text in the key or the holder")
	cmd.Flags().StringVar(&t.list.kind, "type", "", "only keys of this type, the part before the first colon")
	cmd.Flags().DurationVar(&t.interval, "interval", 2*time.Second, "how often to ask")
	cmd.Flags().BoolVar(&t.once, "once", false, "print one table and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t.repeats = cmd.Flags().Changed("interval")
		if err := t.check(); err != nil {
			return err
		}
		t.client = a.newClient().WithPatience(topPatience)
		out, _ := cmd.OutOrStdout().(*os.File)
		switch lines := terminalLines(out); {
		case t.once, lines == 0 && !t.repeats:
			return t.print(cmd.OutOrStdout())
		case lines == 0:
			return t.repeat(cmd.OutOrStdout(), cmd.ErrOrStderr())
		}
		return t.show(out)
	}
	return cmd
}

func (t *top) check() error {
	if t.all {
		t.list.scope = "all"
	}
	switch {
	case topOrders[t.sort] == nil:
		return usagef("--sort is %q; allowed: %s", t.sort, strings.Join(topSorts, ", "))
	case t.interval < minTopInterval:
		return usagef("--interval is %s; allowed: %s or more", t.interval, minTopInterval)
	case t.once && t.repeats:
		return usagef("--once and --interval do not go together")
	}
	return nil
}

// terminalLines is the number of lines of a terminal, 0 for any other file.
func terminalLines(out *os.File) int {
	if out == nil || os.Getenv("TERM") == "dumb" {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return cmp.Or(int(size.Row), 24) // a new terminal may not report its size yet
}

func (t *top) print(out io.Writer) error {
	table, err := t.table()
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, table)
	return err
}

// repeat prints tables until out cannot be written. If a sidecar does not answer, it writes a line to errOut.
func (t *top) repeat(out, errOut io.Writer) error {
	for ; ; time.Sleep(t.interval) {
		table, err := t.table()
		if err != nil {
			fmt.Fprintf(errOut, "locksidecar: %s: %s\n", time.Now().Format(time.TimeOnly), client.Printable(err.Error()))
			continue
		}
		if _, err := io.WriteString(out, table+"\n"); err != nil {
			return err
		}
	}
}

// show replaces the table on the screen, as far as the terminal has lines.
func (t *top) show(terminal *os.File) error {
	for ; ; time.Sleep(t.interval) {
		table, err := t.table()
		if err != nil {
			table = client.Printable(err.Error())
		}
		lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
		lines = lines[:min(len(lines), terminalLines(terminal))]
		_, err = terminal.WriteString(topOfScreen + strings.Join(lines, clearToEnd+"\n") + endOfScreen)
		if err != nil {
			return err
		}
	}
}

// table reads the locks, and formats the selected ones.
func (t *top) table() (string, error) {
	list, err := listLocks(t.client, t.list)
	if err != nil {
		return "", err
	}
	shown, err := t.wanted(list.Locks)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	count := fmt.Sprint(len(list.Locks))
	if list.NextCursor != nil {
		count = "more than " + count
	}
	fmt.Fprintf(&out, "locksidecar top: %s held, %d shown, at %s\n", count, len(shown), time.Now().Format(time.TimeOnly))
	if list.NextCursor != nil {
		fmt.Fprintf(&out, "only the first %d by key were read: see --type\n", len(list.Locks))
	}
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tMODE\tHOLDER\tAGE\tWAITERS\tEXPIRES")
	for _, lock := range shown {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", client.Printable(lock.Key), &lock.LockMode, client.Printable(lock.Holder.Name()),
			client.Human(lock.Holder.HeldMS), lock.QueueLength, client.Human(lock.Holder.ExpiresInMS))
	}
	err = table.Flush()
	return out.String(), err
}

// wanted returns the locks in order, without those that the filter hides.
func (t *top) wanted(encoded []json.RawMessage) (shown []*client.Lock, err error) {
	filter := strings.ToLower(t.filter)
	for _, one := range encoded {
		lock := &client.Lock{}
		if err := decode(one, lock); err != nil {
			return nil, err
		}
		if lock.Holder != nil && strings.Contains(strings.ToLower(lock.Key+"\n"+lock.Holder.Name()), filter) {
			shown = append(shown, lock)
		}
	}
	slices.SortStableFunc(shown, topOrders[t.sort]) // the API sorts them by key
	if t.reverse {
		slices.Reverse(shown)
	}
	return shown, nil
}
