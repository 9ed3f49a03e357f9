package cli

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

const (
	// maxTopLocks is the most locks that `top` reads: whoever has more wants --type.
	maxTopLocks = 10_000
	// minTopInterval is the shortest --interval: each one asks for all that is shown.
	minTopInterval = 100 * time.Millisecond
	// topPatience is how long an answer may take before the view says that none came.
	topPatience = 10 * time.Second
)

type topFlags struct {
	model    topModel
	interval time.Duration
	once     bool
}

func (a *app) topCommand() *cobra.Command {
	var flags topFlags
	m := &flags.model
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the held locks: who holds them, for how long, and how many wait",
		Long: `Watch the locks that this pod's sidecar granted, or those of all pods of the
namespace: who holds them, for how long, how many wait in line, and when they end if
they are not renewed. ? shows the keys.

Where the output is no terminal, or with --once, it prints one table and ends; with
--interval it prints one after the other.`,
		Example: `  locksidecar top
  locksidecar top --all --sort waiters
  locksidecar top --all --type backup --filter web-1 --once
  locksidecar top --all --interval 10s >> locks.txt`,
		Args: exactly(0),
	}
	cmd.Flags().BoolVar(&m.all, "all", false, "the locks of all pods of the namespace (default: those granted by this sidecar)")
	cmd.Flags().StringVar(&m.sort, "sort", byAge, "key, holder, age (the oldest first), waiters (the most first), or expiry (the next first)")
	cmd.Flags().BoolVar(&m.reverse, "reverse", false, "the other way round")
	cmd.Flags().StringVar(&m.filter, "filter", "", "only locks with this text in the key or the holder")
	cmd.Flags().StringVar(&m.kind, "type", "", "only keys of this type, the part before the first colon")
	cmd.Flags().DurationVar(&flags.interval, "interval", 2*time.Second, "how often to ask")
	cmd.Flags().BoolVar(&flags.once, "once", false, "print one table and end")
	must(cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(topSorts, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		repeat := cmd.Flags().Changed("interval")
		if err := flags.check(repeat); err != nil {
			return err
		}
		c := a.newClient().withPatience(topPatience)
		out := cmd.OutOrStdout()
		if file, ok := out.(*os.File); ok && !flags.once && canShow(os.Stdin, file) {
			return watchTop(c, m, flags.interval, os.Stdin, file)
		}
		if repeat {
			return repeatTop(c, m, flags.interval, out, cmd.ErrOrStderr())
		}
		return printTop(c, m, out)
	}
	return cmd
}

func (f *topFlags) check(repeat bool) error {
	switch {
	case !slices.Contains(topSorts, f.model.sort):
		return usagef("--sort is %q; allowed: key, holder, age, waiters, expiry", f.model.sort)
	case f.interval < minTopInterval:
		return usagef("--interval is %s; allowed: %s or more", f.interval, minTopInterval)
	case f.once && repeat:
		return usagef("--once and --interval do not go together")
	}
	return nil
}

// canShow reports whether somebody sits there who can see a live view.
func canShow(in, out *os.File) bool {
	return os.Getenv("TERM") != "dumb" && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}

func printTop(c *client, m *topModel, out io.Writer) error {
	locks, more, err := c.topLocks(m.all, m.kind)
	if err != nil {
		return err
	}
	m.found(locks, more, time.Now())
	_, err = io.WriteString(out, m.plain())
	return err
}

// repeatTop prints tables until nobody reads them. A sidecar that does not answer is a line in errOut.
func repeatTop(c *client, m *topModel, interval time.Duration, out, errOut io.Writer) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ; ; <-tick.C {
		locks, more, err := c.topLocks(m.all, m.kind)
		if err != nil {
			fmt.Fprintf(errOut, "locksidecar: %s: %s\n", time.Now().Format(time.TimeOnly), printable(err.Error()))
			continue
		}
		m.found(locks, more, time.Now())
		if _, err := io.WriteString(out, m.plain()+"\n"); err != nil {
			return err
		}
	}
}

// topLocks reads the locks page by page, and says whether there are more.
func (c *client) topLocks(all bool, kind string) (locks []topLock, more bool, err error) {
	query := url.Values{"scope": {"pod"}, "limit": {strconv.Itoa(pageSize)}}
	if all {
		query.Set("scope", "all")
	}
	if kind != "" {
		query.Set("type", kind)
	}
	for {
		page, err := c.listPage(query)
		if err != nil {
			return nil, false, err
		}
		for _, encoded := range page.Locks {
			var lock lockView
			if err := decode(encoded, &lock); err != nil {
				return nil, false, err
			}
			locks = append(locks, newTopLock(&lock))
		}
		if page.NextCursor == nil || len(locks) >= maxTopLocks {
			return locks, page.NextCursor != nil, nil
		}
		query.Set("cursor", *page.NextCursor)
	}
}
