package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
)

// Once does work once: of all concurrent callers for a key, one runs the function, and the others wait for its result, which all
// get as JSON makes it, in at most 4 KiB. If the function fails, its caller gets the error, and the next one runs its own. A later call runs
// again.
func Once[T any](ctx context.Context, c *Client, key string, run func(ctx context.Context, lock *Lock) (T, error), opts ...Option) (result T, err error) {
	lock, err := c.Acquire(ctx, key, append(slices.Clip(opts), SkipIfDone())...)
	var skipped *Error
	if errors.As(err, &skipped) && skipped.Is(ErrSkipped) {
		err = json.Unmarshal(skipped.Result, &result)
		return result, err
	}
	if err != nil {
		return result, err
	}
	var text json.RawMessage
	err = doUnder(ctx, Locks{lock}, func(ctx context.Context) error {
		value, err := run(ctx, lock)
		if err != nil {
			return err
		}
		if text, err = json.Marshal(value); err != nil {
			return invalid("the result cannot be made into JSON: %v", err)
		}
		return lock.Release(WithResult(text))
		// If it is too large, for example, the next line lets the next caller run its own.
	}, func(error) []ReleaseOption { return []ReleaseOption{WithOutcome(OutcomeFailure)} })
	if err != nil {
		return result, err
	}
	err = json.Unmarshal(text, &result)
	return result, err
}
