package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
)

// NextToken returns a number above every token so far. In a quiet time it fails, because what was forgotten is not known.
func (s *Store) NextToken(ctx context.Context) (int64, error) {
	return s.token(ctx, "next token", sqlNextToken)
}

// RaiseTokens makes later tokens at least first. It needs the rights of the schema's owner.
func (s *Store) RaiseTokens(ctx context.Context, first int64) error {
	if err := store.CheckRaise(first); err != nil {
		return err
	}
	_, err := s.token(ctx, "raise tokens", sqlRaiseTokens, first)
	return err
}

func (s *Store) token(ctx context.Context, op string, sql statement, args ...any) (int64, error) {
	ctx, cancel, o, err := s.begin(ctx, op)
	if err != nil {
		return 0, err
	}
	defer cancel()
	type answer struct {
		token int64
		quiet *time.Duration
	}
	found, err := query(ctx, o, sql, args, func(rows pgx.Rows, a *answer) error { return rows.Scan(&a.token, &a.quiet) })
	switch {
	case err != nil:
		return 0, err
	case len(found) != 1:
		return 0, o.fail(errNoMeta, true)
	case found[0].quiet != nil:
		return 0, o.fail(&store.QuietError{Left: *found[0].quiet}, false)
	}
	return found[0].token, nil
}
