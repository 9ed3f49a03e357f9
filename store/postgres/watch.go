package postgres

import "github.com/locksidecar/locksidecar/store"

// eventIn tells those who watch a key of a namespace what happened to it.
func (o *operation) eventIn(string, store.Event) {}
