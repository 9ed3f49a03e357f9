package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/store/mysql"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/redis"
)

func (a *app) migrateCommand() *cobra.Command {
	m := move{source: a.source}
	var isNew bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date, or carry tokens to another store",
		Long: `Bring the schema of the database in LOCKSIDECAR_STORE_URL up to date, and exit.
Any number may run at once, beside running sidecars. With this run under a role
that may create tables, sidecars need no such right (LOCKSIDECAR_AUTO_MIGRATE=false).

With --from and --to, carry tokens from one store to another instead, when all sidecars
move to it. Each later token is then greater than each one before, for every key, so
what checks fencing tokens goes on. Stop the sidecars of the old store first: locks and
waiting calls are not carried. It is refused while any are left there, and while the new
store has some. Then start sidecars with the new store. The user of --to must own its
tables. docs/stores.md has the steps.

Redis has no schema. But a new server has a quiet time: it grants nothing until it has
been up for a TTL, because a server that has lost its data looks the same. With --new, mark
an empty server as new, so that the first sidecars need not wait. Only you can know that
no sidecar has ever used it: run this once, by hand, and never in a script or job that
runs again. It is refused if the server was used, was a replica, or a sidecar is connected.`,
		Example: `  LOCKSIDECAR_STORE_URL=postgres://owner@db/app locksidecar migrate

  # From one store to another. A URL with a password is better kept in a file
  locksidecar migrate --from redis://cache:6379 --to @/run/secrets/new-store-url --wait 1m

  # Before the first start of all on a new Redis
  LOCKSIDECAR_STORE_URL=redis://cache:6379 locksidecar migrate --new`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals, release := onSignals(cmd.Context())
			defer release()
			if isNew && (m.from != "" || m.to != "") {
				return usagef("--new is not for --from and --to")
			}
			if m.from != "" || m.to != "" {
				return m.run(signals.stop, cmd)
			}
			cfg, _, err := config.Load(a.source)
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			if isNew {
				return markNew(signals.stop, cmd, a.source, cfg.Store)
			}
			var migrate func(context.Context, string) (from, to int, err error)
			switch cfg.Store.Kind {
			case config.Postgres:
				migrate = postgres.Migrate
			case config.MySQL:
				migrate = mysql.Migrate
			default:
				return exitcode.With(exitcode.Config, noSchema(a.source, cfg.Store))
			}
			from, to, err := migrate(signals.stop, cfg.Store.Reveal())
			if err != nil {
				return exitcode.With(migrateCode(err), fmt.Errorf("migrating %s: %w", cfg.Store, err))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the schema of %s is up to date: version %d (it was %d)\n", cfg.Store, to, from)
			return err
		},
	}
	cmd.Flags().StringVar(&m.from, "from", "", "URL of the store that was used, or @FILE with it")
	cmd.Flags().StringVar(&m.to, "to", "", "URL of the store that will be used, or @FILE with it")
	cmd.Flags().BoolVar(&isNew, "new", false, "mark an empty Redis, which no sidecar has used yet, as new")
	cmd.Flags().DurationVar(&m.wait, "wait", 0, "with --from: how long to wait until its last lock ends")
	return cmd
}

// noSchema is the error for a store that has no schema.
func noSchema(source config.Source, st config.StoreURL) error {
	if namesNoStore(source, st) {
		return errors.New("no store is named, so there is nothing to migrate: set " + config.Prefix + "STORE_URL, or carry tokens with --from and --to")
	}
	text := st.String() + " has no schema, so there is nothing to migrate"
	if st.Kind == config.Redis {
		text += "; if no sidecar has used this server yet, --new spares the first ones its quiet time"
	}
	return errors.New(text)
}

// namesNoStore reports whether the store is that of a sidecar without a configuration.
func namesNoStore(source config.Source, st config.StoreURL) bool {
	value, set := source.Lookup(config.Prefix + "STORE_URL")
	return st.Kind == config.Memory && (!set || value == "")
}

// markNew is migrate --new.
func markNew(ctx context.Context, cmd *cobra.Command, source config.Source, st config.StoreURL) error {
	if namesNoStore(source, st) {
		return exitcode.With(exitcode.Config, errors.New("no store is named: set "+config.Prefix+"STORE_URL to the URL of the new Redis, such as redis://cache:6379"))
	}
	if st.Kind != config.Redis {
		return exitcode.With(exitcode.Config, fmt.Errorf("--new is only for Redis: a new %s has no quiet time", st.Kind))
	}
	err := redis.MarkNew(ctx, st.Reveal())
	switch {
	case redis.IsNotNew(err):
		return exitcode.With(exitcode.Refused, fmt.Errorf("%s is not marked as new: %w", st, err))
	case redis.CannotReach(err):
		return exitcode.With(exitcode.Unavailable, fmt.Errorf("marking %s as new: %w", st, err))
	case err != nil:
		return exitcode.With(exitcode.Config, fmt.Errorf("marking %s as new: %w", st, err))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is marked as new: sidecars may start, and get locks at once\n", st)
	return err
}

// migrateCodes maps SQLSTATEs, or their classes, to exit codes: Unavailable means to try again later, Config
// that an operator must act first.
var migrateCodes = map[string]int{
	"42501": exitcode.Config,                        // insufficient privilege
	"28":    exitcode.Config, "3D": exitcode.Config, // wrong login, wrong database
	// connection, resources, operator intervention
	"08": exitcode.Unavailable, "53": exitcode.Unavailable, "57": exitcode.Unavailable,
}

func migrateCode(err error) int {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := refused.Code[:min(2, len(refused.Code))]
		return cmp.Or(migrateCodes[refused.Code], migrateCodes[class], exitcode.Unexpected)
	}
	if mysql.NeedsOperator(err) {
		return exitcode.Config
	}
	if _, unreachable := errors.AsType[*pgconn.ConnectError](err); unreachable || mysql.Unreachable(err) || errors.Is(err, context.DeadlineExceeded) {
		return exitcode.Unavailable
	}
	return exitcode.Unexpected
}
