package load

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// EveryKey acquires and releases each key of clients with that [Config.Keys] behind a
// socket, one after the other: when all others have left, each can be had within that
// time, whoever died with it.
func EveryKey(ctx context.Context, socket string, keys int, within time.Duration) error {
	c, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var failed []error
	for i := range allKeys(keys) {
		path := lockPath(Key(i))
		a, err := c.call(ctx, within+patience, "PUT", path, request{Wait: within.Milliseconds()}.String())
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("%s: %w", Key(i), err))...)
		}
		if !a.Granted {
			failed = append(failed, fmt.Errorf("%s could not be had within %s: %s", Key(i), within, a.note()))
			continue
		}
		if a, err = c.call(ctx, patience, "DELETE", fmt.Sprintf("%s?token=%d", path, a.Token), ""); err != nil || a.status != 200 {
			return errors.Join(append(failed, fmt.Errorf("%s: the release: %s %w", Key(i), a.note(), err))...)
		}
	}
	return errors.Join(failed...)
}
