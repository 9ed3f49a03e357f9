package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/sidecar"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// readyWithin is how long a store may take to become ready.
	readyWithin = 15 * time.Second
	readyPoll   = 20 * time.Millisecond
	// drainPoll is the pause between two counts of the locks that are left.
	drainPoll = time.Second
)

// move carries the tokens of one store to another.
type move struct {
	source   config.Source
	from, to string
	// wait is how long the last locks of from may take to end.
	wait time.Duration
}

// opened is a store that was opened for a move.
type opened struct {
	store.Store
	space store.Space
	store.Tokens
	url config.StoreURL
}

func (m *move) run(ctx context.Context, cmd *cobra.Command) error {
	if m.from == "" || m.to == "" {
		return usagef("--from and --to belong together: the store that was used, and the one that will be")
	}
	if m.from == m.to {
		return usagef("--from and --to name the same store")
	}
	from, err := m.open(ctx, "--from", m.from, false)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := m.open(ctx, "--to", m.to, true)
	if err != nil {
		return err
	}
	defer to.close()
	if err := m.drained(ctx, from, cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := to.unused(ctx); err != nil {
		return err
	}
	next, err := from.NextToken(ctx)
	if err != nil {
		return failed("reading the tokens of", from, err)
	}
	if err := from.unused(ctx); err != nil {
		return err
	}
	if err := to.RaiseTokens(ctx, next); err != nil {
		return failed("raising the tokens of", to, err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "each later token of %s is at least %d: all tokens of %s were smaller\n", to.url, next, from.url)
	return err
}

// open opens the store of a flag: a URL, or @ and a file with one. schema: its schema is made or brought up to date.
func (m *move) open(ctx context.Context, flag, url string, schema bool) (*opened, error) {
	source := m.source.With("STORE_URL", url).With("STORE_URL_FILE", "")
	if file, is := strings.CutPrefix(url, "@"); is {
		source = m.source.With("STORE_URL", "").With("STORE_URL_FILE", file)
	}
	source = source.With("POSTGRES_LISTEN_URL", "").With("POSTGRES_LISTEN_URL_FILE", "") // they belong to the sidecars' store
	cfg, _, err := config.Load(source)
	if err != nil {
		// The user has set a flag, and not these variables.
		named := strings.NewReplacer(config.Prefix+"STORE_URL_FILE", "the file of "+flag, config.Prefix+"STORE_URL", flag)
		return nil, exitcode.With(exitcode.Config, errors.New(named.Replace(err.Error())))
	}
	cfg.AutoMigrate = schema
	space, st, err := sidecar.OpenStore(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, exitcode.With(exitcode.Config, fmt.Errorf("%s: %w", flag, err))
	}
	o := &opened{Store: st, space: space, url: cfg.Store}
	if o.Tokens, err = store.As[store.Tokens](st, "tokens of another store"); err != nil {
		return nil, exitcode.With(exitcode.Config, fmt.Errorf("%s is %s, whose locks end with their process: it has no tokens to keep", flag, cfg.Store))
	}
	if err := o.start(ctx); err != nil {
		o.close()
		return nil, exitcode.With(exitcode.Unavailable, fmt.Errorf("%s %s: %w", flag, cfg.Store, err))
	}
	return o, nil
}

func (o *opened) close() {
	o.Stop()
	o.space.Stop()
}

// start waits until the store is ready.
func (o *opened) start(ctx context.Context) error {
	if err := o.space.Start(ctx); err != nil {
		return err
	}
	if err := o.Start(ctx, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for {
		err := o.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(readyPoll):
		}
	}
}

// left counts what is held and awaited, in all namespaces.
func (o *opened) left(ctx context.Context) (held, waits int64, err error) {
	all, err := o.Stats(ctx)
	if err != nil {
		return 0, 0, failed("counting the locks of", o, err)
	}
	for i := range all.Types {
		held, waits = held+all.Types[i].Held, waits+all.Types[i].Waiting
	}
	return held, waits, nil
}

// unused fails if something is held or awaited.
func (o *opened) unused(ctx context.Context) error {
	held, waits, err := o.left(ctx)
	if err == nil && held+waits > 0 {
		err = o.inUse(held, waits)
	}
	return err
}

func (o *opened) inUse(held, waits int64) error {
	return exitcode.With(exitcode.Refused, fmt.Errorf(
		"%s is in use: %d locks are held, and %d calls wait; stop all sidecars that use it, or let them drain, and try again (--wait=1m waits for the last lock)",
		o.url, held, waits))
}

// drained waits until nothing is held or awaited.
func (m *move) drained(ctx context.Context, from *opened, progress io.Writer) error {
	for end := time.Now().Add(m.wait); ; {
		held, waits, err := from.left(ctx)
		if err != nil || held+waits == 0 {
			return err
		}
		if !time.Now().Before(end) {
			return from.inUse(held, waits)
		}
		_, _ = fmt.Fprintf(progress, "waiting: %d locks are held, and %d calls wait on %s\n", held, waits, from.url)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(drainPoll, time.Until(end))):
		}
	}
}

// failed is the error of an operation of a store.
func failed(what string, o *opened, err error) error {
	code := migrateCode(err)
	if store.Unavailable(err) {
		code = exitcode.Unavailable
	}
	return exitcode.With(code, fmt.Errorf("%s %s: %w", what, o.url, err))
}
