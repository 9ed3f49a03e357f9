package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

// The scopes of lists. The default is the same in all commands, in the API and in the clients: an empty list then means that nothing is
// held, and not that another pod holds it.
const (
	scopeAll = "all"
	scopePod = "pod"
)

const (
	// lookInterval is the default of --interval. minLookInterval is the shortest, because each look reads all chosen locks.
	lookInterval    = 2 * time.Second
	minLookInterval = 100 * time.Millisecond
)

func badInterval(d time.Duration) error {
	return usagef("--interval is %s; allowed: %s or more", d, minLookInterval)
}

// stateFree is the API's word for a key without a holder.
const stateFree = "free"

type listFlags struct {
	scope, prefix, kind string
	limit               int
}

func (f *listFlags) addScope(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.scope, "scope", scopeAll, "all: of all pods of the namespace; pod: granted by this sidecar")
}

func (f *listFlags) checkScope() error {
	if f.scope != scopeAll && f.scope != scopePod {
		return usagef("--scope is %q; allowed: all, pod", f.scope)
	}
	return nil
}

const lsLong = `List the held locks of all pods of the namespace, ordered by key; with --scope pod only those
that this sidecar has granted.

MODE is "exclusive", or "shared" with the number of holders, and with a limit "shared 3/5"; the
other columns show the holder with the oldest grant ("get" shows all holders).
BIND is "session" for a lock that ends with a release or with its session; the holder's
sidecar renews it. BIND is "ttl" for a lock that ends after its time.
HELD and EXPIRES are durations (1m30s). WAITING is the number of waiting calls.
A SESSION that is "kept" has perhaps released the lock: its sidecar may keep it for the next
session, and the row is that of the last one that the store knows.

With --watch, the command goes on after the list: it looks every --interval, and prints a line for
each lock that is new, has another holder, another number of waiting calls or a new request to
stop. MODE is "free" when a lock is no longer held. A hold that is over between two looks is not
seen: "events KEY" shows all of one key, and "top" a table that is kept up to date. If the sidecar
does not answer, standard error says so, and the command tries again. Ctrl-C ends it, with the exit
code 0.`

type ls struct {
	listFlags

	client   *client.Client
	cmd      *cobra.Command
	watch    bool
	interval time.Duration
	table    alignedTable
}

func (a *app) lsCommand() *cobra.Command {
	l := &ls{}
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List held locks, ordered by key",
		Long:  lsLong,
		Example: `  locksidecar ls --type backup    # backup:…
  locksidecar ls --prefix backup:db-
  locksidecar ls -o wide          # also since when, by which instance, with which data
  locksidecar ls --scope pod      # granted by this sidecar
  locksidecar ls --watch
  locksidecar ls -o json | jq -r '.locks[] | select(.stopping) | .key'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := l.check(cmd.Flags().Changed("interval")); err != nil {
				return err
			}
			l.client, l.cmd = a.newClient(), cmd
			list, err := listLocks(l.client, l.listFlags)
			switch {
			case err != nil:
				return err
			case l.watch:
				return l.follow(list)
			case wantsJSON(cmd):
				return writeJSON(cmd.OutOrStdout(), list)
			}
			return l.write(list.Locks, true)
		},
	}
	addOutput(cmd, "one document, as the API answers; with --watch one lock a line", outputWide)
	l.addScope(cmd)
	cmd.Flags().StringVar(&l.prefix, "prefix", "", "only keys that begin with it")
	cmd.Flags().StringVar(&l.kind, "type", "", "only keys of this type, the part before the first colon")
	cmd.Flags().IntVar(&l.limit, "limit", 0, "list at most so many; 0: all")
	cmd.Flags().BoolVarP(&l.watch, "watch", "w", false, "go on with a line for each change")
	cmd.Flags().DurationVar(&l.interval, "interval", lookInterval, "how often --watch looks, such as 500ms or 10s")
	return cmd
}

func (l *ls) check(interval bool) error {
	switch {
	case l.limit < 0:
		return badLimit(l.limit)
	case l.watch && l.limit > 0:
		return usagef("--watch and --limit do not go together: choose with --prefix or --type")
	case interval && !l.watch:
		return usagef("--interval is only for --watch")
	case l.interval < minLookInterval:
		return badInterval(l.interval)
	}
	return l.checkScope()
}

// write prints the rows of locks, in columns as wide as those before.
func (l *ls) write(locks []json.RawMessage, head bool) error {
	wide := outputOf(l.cmd) == outputWide
	var rows [][]string
	if head {
		rows = append(rows, lockColumns(wide))
	}
	for _, encoded := range locks {
		var lock client.Lock
		if err := decode(encoded, &lock); err != nil {
			return err
		}
		rows = append(rows, lockRow(&lock, wide))
	}
	return l.table.write(l.cmd.OutOrStdout(), rows)
}

// follow prints the list, and then each lock that has changed, until it is told to stop.
func (l *ls) follow(list lockPage) error {
	ctx, release := signal.NotifyContext(l.cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer release()
	var seen map[string]string
	for first := true; ; first = false {
		changed, now, err := changes(seen, list.Locks)
		if err != nil {
			return err
		}
		seen = now
		if wantsJSON(l.cmd) {
			err = writeLines(l.cmd.OutOrStdout(), changed)
		} else {
			err = l.write(changed, first)
		}
		if err != nil {
			return err
		}
		for away := false; ; away = true {
			select {
			case <-time.After(l.interval):
			case <-ctx.Done():
				return nil
			}
			if list, err = listLocks(l.client, l.listFlags); err == nil {
				break
			}
			if !away {
				tellAway(l.cmd.ErrOrStderr(), err)
			}
		}
	}
}

// changes returns the locks that are other than those that were seen, then those that are free now, and what is seen now: the
// state of each key, without its durations.
func changes(seen map[string]string, locks []json.RawMessage) (changed []json.RawMessage, now map[string]string, err error) {
	now = make(map[string]string, len(locks))
	for _, encoded := range locks {
		var lock client.Lock
		if err := decode(encoded, &lock); err != nil {
			return nil, nil, err
		}
		state := fmt.Sprint(&lock.LockMode, lock.QueueLength, lock.Stopping)
		if lock.Holder != nil {
			state += lock.Holder.Grant()
		}
		if seen[lock.Key] != state {
			changed = append(changed, encoded)
		}
		now[lock.Key] = state
	}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		if now[key] == "" {
			free, err := json.Marshal(map[string]string{"key": key, "state": stateFree})
			if err != nil {
				return nil, nil, err
			}
			changed = append(changed, free)
		}
	}
	return changed, now, nil
}

// tellAway says that a command goes on, although the sidecar or its store is away.
func tellAway(w io.Writer, err error) {
	fmt.Fprintf(w, "locksidecar: %s: %v; trying again\n", time.Now().Format(time.TimeOnly), err)
}

// listLocks reads all pages into one. It keeps the locks as received, because newer members may be unknown here.
func listLocks(c *client.Client, flags listFlags) (list lockPage, err error) {
	list.Locks = []json.RawMessage{}
	list.NextCursor, err = c.Pages("/v1/locks", flags.query(), flags.limit, func(p *client.Page) error {
		list.Locks = append(list.Locks, p.Locks...)
		return nil
	})
	return list, err
}

func (f *listFlags) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"scope": f.scope, "prefix": f.prefix, "type": f.kind} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

type lockPage struct {
	Locks      []json.RawMessage `json:"locks"`
	NextCursor *string           `json:"next_cursor"` // null: there are no more
}

func badLimit(limit int) error { return usagef("--limit is %d; allowed: 0 or more", limit) }
