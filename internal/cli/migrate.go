package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func (a *app) migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date, and exit",
		Long: `Bring the schema of the database in LOCKSIDECAR_STORE_URL up to date, and exit.
Any number may run at once, beside running sidecars. With this run under a role
that may create tables, sidecars need no such right (LOCKSIDECAR_AUTO_MIGRATE=false).`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			signals, release := onSignals(cmd.Context())
			defer release()
			cfg, _, err := config.Load(a.source)
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			if cfg.Store.Kind != config.Postgres {
				return exitcode.With(exitcode.Config, errors.New(config.Prefix+"STORE_URL is "+cfg.Store.String()+": there is no schema to migrate"))
			}
			from, to, err := postgres.Migrate(signals.stop, cfg.Store.Reveal())
			if err != nil {
				return exitcode.With(migrateCode(err), fmt.Errorf("migrating %s: %w", cfg.Store, err))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the schema of %s is up to date: version %d (it was %d)\n", cfg.Store, to, from)
			return err
		},
	}
}

// migrateCode tells a database that may be tried again from one that must be fixed first.
func migrateCode(err error) int {
	var refused *pgconn.PgError
	var unreachable *pgconn.ConnectError
	switch {
	case errors.As(err, &refused):
		return refusedCode(refused.Code)
	case errors.As(err, &unreachable), errors.Is(err, context.DeadlineExceeded):
		return exitcode.Unavailable
	}
	return exitcode.Unexpected
}

// refusedCode maps a SQLSTATE, mostly by its class.
func refusedCode(state string) int {
	const insufficientPrivilege = "42501"
	if state == insufficientPrivilege {
		return exitcode.Config
	}
	switch state[:min(2, len(state))] {
	case "28", "3D": // who we are, which database
		return exitcode.Config
	case "08", "53", "57": // connection, resources, operator intervention
		return exitcode.Unavailable
	}
	return exitcode.Unexpected
}
