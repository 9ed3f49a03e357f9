package cas

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// NextToken reads every record, and asks for the token of a record that is new, because those of deleted ones were smaller.
func (s *Store) NextToken(ctx context.Context) (next int64, err error) {
	if err := s.usable(ctx, "NextToken"); err != nil {
		return 0, err
	}
	probe := Swap{Key: ownKeys + "probe-" + uuid.NewString(), Tokens: 1}
	made, err := s.backend.Swap(ctx, []Swap{probe})
	switch {
	case err != nil:
		return 0, known("NextToken", err)
	case made[0].Quiet > 0:
		return 0, &store.Error{Op: "NextToken", Err: fmt.Errorf("the server grants nothing for %s after a failover: try again then", made[0].Quiet)}
	case !made[0].Done:
		return 0, &store.Error{Op: "NextToken", Err: errors.New("the server did not make a new record")}
	}
	for last := ""; ; {
		records, err := s.backend.Scan(ctx, "", last, pageSize)
		if err != nil {
			return 0, known("NextToken", err)
		}
		for i := range records {
			next, last = max(next, records[i].Base+int64(records[i].Tokens)), records[i].Key
		}
		if len(records) < pageSize {
			break
		}
	}
	probe.Version, probe.Delete, probe.Tokens = made[0].Record.Version, true, 0
	if _, err := s.backend.Swap(ctx, []Swap{probe}); err != nil {
		return 0, known("NextToken", err)
	}
	return next, nil
}

// RaiseTokens makes later tokens at least first.
func (s *Store) RaiseTokens(ctx context.Context, first int64) error {
	if err := s.usable(ctx, "RaiseTokens"); err != nil {
		return err
	}
	return s.backend.RaiseTokens(ctx, first)
}
