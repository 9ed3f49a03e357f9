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
)

const (
	// maxTopLocks is the most locks that `top` reads: whoever has more wants --type.
	maxTopLocks = 10_000
	// minTopInterval is the shortest --interval: each one asks for all that is shown.
	minTopInterval = 100 * time.Millisecond
	// topPatience is how long an answer may take.
	topPatience = 10 * time.Second
)

// Sequences of terminals. Without wrapping, a long line is cut at the terminal's edge.
const (
	topOfScreen = "\x1b[H\x1b[?7l"
	endOfScreen = "\x1b[J\x1b[?7h"
	clearToEnd  = "\x1b[K" // of the line
)

// topOrders are the orders of `top`. They put trouble first: the oldest hold, the most waiters, the next
// expiry.
var topOrders = map[string]func(a, b *lockView) int{
	"age":     func(a, b *lockView) int { return cmp.Compare(b.Holder.HeldMS, a.Holder.HeldMS) },
	"waiters": func(a, b *lockView) int { return cmp.Compare(b.QueueLength, a.QueueLength) },
	"expiry":  func(a, b *lockView) int { return cmp.Compare(a.Holder.ExpiresInMS, b.Holder.ExpiresInMS) },
	"key":     func(a, b *lockView) int { return cmp.Compare(a.Key, b.Key) },
	"holder":  func(a, b *lockView) int { return cmp.Compare(a.Holder.name(), b.Holder.name()) },
}

var topSorts = []string{"age", "waiters", "expiry", "key", "holder"}

type top struct {
	client        *client
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
namespace: who holds them, for how long, how many wait in line, and when they end if
they are not renewed. Of a shared lock, the holder and the age are those of the one that
was granted first. Ctrl-C ends it.

Where the output is no terminal, or with --once, it prints one table and ends; with
--interval it prints one after the other.`,
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
		t.client = a.newClient().withPatience(topPatience)
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

// terminalLines is how many lines a terminal shows, 0 for what is none.
func terminalLines(out *os.File) int {
	if out == nil || os.Getenv("TERM") == "dumb" {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return cmp.Or(int(size.Row), 24) // a new terminal may not know yet
}

func (t *top) print(out io.Writer) error {
	table, err := t.table()
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, table)
	return err
}

// repeat prints tables until nobody reads them. A sidecar that does not answer is a line in errOut.
func (t *top) repeat(out, errOut io.Writer) error {
	for ; ; time.Sleep(t.interval) {
		table, err := t.table()
		if err != nil {
			fmt.Fprintf(errOut, "locksidecar: %s: %s\n", time.Now().Format(time.TimeOnly), printable(err.Error()))
			continue
		}
		if _, err := io.WriteString(out, table+"\n"); err != nil {
			return err
		}
	}
}

// show shows one table in the place of the other, as much of it as the terminal has lines.
func (t *top) show(terminal *os.File) error {
	for ; ; time.Sleep(t.interval) {
		table, err := t.table()
		if err != nil {
			table = printable(err.Error())
		}
		lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
		lines = lines[:min(len(lines), terminalLines(terminal))]
		_, err = terminal.WriteString(topOfScreen + strings.Join(lines, clearToEnd+"\n") + endOfScreen)
		if err != nil {
			return err
		}
	}
}

// table asks for the locks, and shows those that are wanted.
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", printable(lock.Key), &lock.lockMode, printable(lock.Holder.name()),
			human(lock.Holder.HeldMS), lock.QueueLength, human(lock.Holder.ExpiresInMS))
	}
	err = table.Flush()
	return out.String(), err
}

// wanted are the locks in order, without those that the filter hides.
func (t *top) wanted(encoded []json.RawMessage) (shown []*lockView, err error) {
	filter := strings.ToLower(t.filter)
	for _, one := range encoded {
		lock := &lockView{}
		if err := decode(one, lock); err != nil {
			return nil, err
		}
		if lock.Holder != nil && strings.Contains(strings.ToLower(lock.Key+"\n"+lock.Holder.name()), filter) {
			shown = append(shown, lock)
		}
	}
	slices.SortStableFunc(shown, topOrders[t.sort]) // they come in the order of their keys
	if t.reverse {
		slices.Reverse(shown)
	}
	return shown, nil
}

// name is how `top` shows a holder: pod/session (owner).
func (h *lockHolder) name() string {
	name := h.Pod
	if h.Session != nil {
		name += "/" + *h.Session
	}
	if h.Owner != nil {
		name += " (" + *h.Owner + ")"
	}
	return name
}
