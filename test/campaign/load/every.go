package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// EveryKey acquires and releases each key of clients with that [Config.Keys] behind a
// socket, one after the other, and of a semaphore all permits at once: when all others have
// left, each can be had within that time, whoever died with it.
func EveryKey(ctx context.Context, socket string, keys int, within time.Duration) error {
	var failed []error
	for i := range allKeys(keys) {
		wanted := []request{{Wait: within.Milliseconds()}}
		if limit := limitOf(keys, Key(i)); isShared(keys, Key(i)) && limit > 0 {
			wanted = slices.Repeat([]request{{Wait: within.Milliseconds(), Mode: "shared", Limit: limit}}, limit)
		}
		failed = append(failed, everyPermit(ctx, socket, Key(i), wanted, within))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// everyPermit makes so many acquires of a key, each in a session of its own, and then gives all up.
func everyPermit(ctx context.Context, socket, key string, wanted []request, within time.Duration) (broken error) {
	var release []func() error
	defer func() {
		for _, f := range release {
			broken = errors.Join(broken, f())
		}
	}()
	for _, req := range wanted {
		c, err := dial(ctx, socket)
		if err != nil {
			return err
		}
		a, err := c.call(ctx, within+patience, "PUT", lockPath(key), req.String())
		// A failover may bring back a share with another limit, until its lease ends.
		for deadline := time.Now().Add(within); err == nil && a.Code == "limit_mismatch" && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond)
			a, err = c.call(ctx, within+patience, "PUT", lockPath(key), req.String())
		}
		switch {
		case err != nil:
			return errors.Join(fmt.Errorf("%s: %w", key, err), c.Close())
		case !a.Granted:
			return errors.Join(fmt.Errorf("%s could not be had within %s: %s", key, within, a.note()), c.Close())
		}
		release = append(release, func() error {
			defer func() { _ = c.Close() }()
			released, err := c.call(ctx, patience, "DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), a.Token), "")
			if err != nil || released.status != 200 {
				return fmt.Errorf("%s: the release: %s %w", key, released.note(), err)
			}
			return nil
		})
	}
	return nil
}
