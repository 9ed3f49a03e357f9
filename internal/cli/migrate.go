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
)

func (a *app) migrateCommand() *cobra.Command {
	m := move{source: a.source}
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
tables. docs/stores.md has the steps.`,
		Example: `  LOCKSIDECAR_STORE_URL=postgres://owner@db/app locksidecar migrate

  # From one store to another. A URL with a password is better kept in a file
  locksidecar migrate --from redis://cache:6379 --to @/run/secrets/new-store-url --wait 1m`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals, release := onSignals(cmd.Context())
			defer release()
			if m.from != "" || m.to != "" {
				return m.run(signals.stop, cmd)
			}
			cfg, _, err := config.Load(a.source)
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			var migrate func(context.Context, string) (from, to int, err error)
			switch cfg.Store.Kind {
			case config.Postgres:
				migrate = postgres.Migrate
			case config.MySQL:
				migrate = mysql.Migrate
			default:
				return exitcode.With(exitcode.Config, errors.New(config.Prefix+"STORE_URL is "+cfg.Store.String()+": there is no schema to migrate"))
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
	cmd.Flags().DurationVar(&m.wait, "wait", 0, "with --from: how long to wait until its last lock ends")
	return cmd
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
