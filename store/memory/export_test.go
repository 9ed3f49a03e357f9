package memory

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// Enqueue is Acquire for asks that wait.
func (s *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i].Wait = true
	}
	return s.Acquire(ctx, asks)
}

// OnNews sets the function that hears news.
func (s *Store) OnNews(f func(store.News)) { s.news = f }
