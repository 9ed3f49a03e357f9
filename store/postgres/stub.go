package postgres

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/store"
)

var errLater = errors.New("not built yet")

// Signal asks holders for something.
func (s *Store) Signal(context.Context, []store.Signal) ([]store.Standing, error) {
	return nil, errLater
}

// Signals returns what holders are asked for.
func (s *Store) Signals(context.Context, []store.LeaseID) ([]store.Signal, error) {
	return nil, errLater
}

// Heard forgets signals.
func (s *Store) Heard(context.Context, []store.SignalID) error { return errLater }

// Watch makes this instance hear events of keys.
func (s *Store) Watch(context.Context, []string, store.LeaseID) error { return errLater }

// Unwatch ends that.
func (s *Store) Unwatch(context.Context, []string) error { return errLater }
