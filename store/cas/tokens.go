package cas

import (
	"context"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

// NextToken reads every record. It fails if one cannot be read, because somebody may hold its key.
func (s *Store) NextToken(ctx context.Context) (int64, error) {
	if err := s.usable(ctx, "NextToken"); err != nil {
		return 0, err
	}
	next, err := s.requests.NextToken(ctx)
	if err != nil {
		return 0, known("NextToken", err)
	}
	for last := ""; ; {
		records, err := s.requests.Scan(ctx, "", last, pageSize)
		if err != nil {
			return 0, known("NextToken", err)
		}
		for i := range records {
			r := &records[i]
			if next, last = max(next, r.Base+int64(r.Tokens)), r.Key; strings.HasPrefix(r.Key, ownKeys) {
				continue
			}
			if _, err := Decode(r); err != nil {
				return 0, &store.Error{Op: "NextToken", Err: fmt.Errorf("a record cannot be read: %w", err)}
			}
		}
		if len(records) < pageSize {
			return next, nil
		}
	}
}

// RaiseTokens makes later tokens at least first.
func (s *Store) RaiseTokens(ctx context.Context, first int64) error {
	if err := s.usable(ctx, "RaiseTokens"); err != nil {
		return err
	}
	if err := store.CheckRaise(first); err != nil {
		return err
	}
	return s.requests.RaiseTokens(ctx, first)
}
