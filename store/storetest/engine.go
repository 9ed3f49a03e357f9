package storetest

import (
	"github.com/locksidecar/locksidecar/store"
)

// engine is a store, with Listen in any case: only engines with the capability pay for news.
type engine struct {
	store.Store
	store.Listener
}

func engineOf(s store.Store) engine {
	if l, ok := s.(store.Listener); ok {
		return engine{s, l}
	}
	return engine{s, deaf{}}
}

type deaf struct{}

func (deaf) Listen(bool) {}
