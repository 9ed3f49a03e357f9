package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// NextToken returns a number above every token so far.
func (s *Store) NextToken(ctx context.Context) (int64, error) {
	return s.token(ctx, "next token", sqlNextToken)
}

// RaiseTokens makes later tokens at least first. It needs the rights of the schema's owner.
func (s *Store) RaiseTokens(ctx context.Context, first int64) error {
	_, err := s.token(ctx, "raise tokens", sqlRaiseTokens, first)
	return err
}

func (s *Store) token(ctx context.Context, op string, sql statement, args ...any) (int64, error) {
	ctx, cancel, o, err := s.begin(ctx, op)
	if err != nil {
		return 0, err
	}
	defer cancel()
	found, err := query(ctx, o, sql, args, func(rows pgx.Rows, token *int64) error { return rows.Scan(token) })
	if err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, o.fail(errNoMeta, true)
	}
	return found[0], nil
}
