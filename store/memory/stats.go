package memory

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// Stats counts what the space holds.
func (s *Store) Stats(context.Context) (store.Stats, error) { return store.Stats{}, nil }

// Elect makes one instance of the space the one that reads Stats for all.
func (s *Store) Elect(context.Context, time.Duration) (store.Election, error) {
	return store.Election{}, nil
}
