package postgres

import "github.com/locksidecar/locksidecar/store"

// event tells those who watch a key what happened to it.
func (o *operation) event(store.Event) {}
