package memory

import (
	"github.com/locksidecar/locksidecar/store"
)

// OnNews sets the function that hears news.
func (s *Store) OnNews(f func(store.News)) { s.news = f }
