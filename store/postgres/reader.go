package postgres

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// A role that may only read (locksidecar_reader in deploy/roles.sql) can show locks, queues and counts, as the
// console does. It must not see tokens, data and ids of attempts, so it has a statement of its own for locks.

// readings are the operations that such a role can carry out. It has no leases, so nothing is left of an earlier sidecar.
var readings = []string{"get", "list", "stats", "waiting", "next token", "revoke instance"}

// mayCarryOut returns an error if the role may only read and the operation changes something.
func (s *Space) mayCarryOut(name string) error {
	if !s.readsOnly.Load() || slices.Contains(readings, name) {
		return nil
	}
	return &store.UnsupportedError{Capability: name, Why: "the database role of this sidecar may only read, so it cannot " + name}
}

// MayShowNamespaces is nil for a role that may only read: an operator has chosen it for a sidecar that shows locks to people. A sidecar of apps
// shows only its own namespace, because its apps may not see the others.
func (s *Space) MayShowNamespaces() error {
	if s.readsOnly.Load() {
		return nil
	}
	return &store.UnsupportedError{
		Capability: "namespaces", Why: "this sidecar shows only its own namespace, because its database role may change locks; one that may only read (locksidecar_reader) shows all",
	}
}

// getAsReader reads keys one by one. A free key has only its name.
func (s *Store) getAsReader(ctx context.Context, o *operation, keys []string) ([]store.Lock, error) {
	locks := make([]store.Lock, len(keys))
	for i, key := range keys {
		found, err := o.list(ctx, sqlListAsReader, "", "", key, justBehind(key), "", 1)
		if err != nil {
			return nil, err
		}
		if locks[i].Key = key; len(found) > 0 {
			locks[i] = found[0]
		}
	}
	return locks, nil
}

// justBehind is the next text after a key. Keys contain no zero byte.
func justBehind(key string) string { return key + "\x01" }
