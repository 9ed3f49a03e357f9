package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// Times are how long calls took.
type Times []time.Duration

// Quantile is a time that the given part of them did not exceed; 0 when there are none.
func (t Times) Quantile(part float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// callLimit is how long a call of a pair may take.
const callLimit = 20 * time.Second

// pairBody asks for a lock with the default TTL of sidecars, whatever they have been set
// to: pairs are to be measured, not to be lost when the machine is busy.
const pairBody = `{"ttl_ms":15000,"wait_ms":10000}`

// Pairs acquires and releases a lock again and again, with a pause behind each pair,
// until ctx ends, and tells each how long a pair took.
func Pairs(ctx context.Context, socket, key string, pause time.Duration, each func(time.Duration)) error {
	c, err := wire.Dial(socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	path := "/v1/locks/" + key
	for ctx.Err() == nil {
		began := time.Now()
		token, err := do(c, "PUT", path, pairBody)
		if err != nil {
			return err
		}
		if _, err := do(c, "DELETE", fmt.Sprintf("%s?token=%d", path, token), ""); err != nil {
			return err
		}
		each(time.Since(began))
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// do makes a call that must succeed.
func do(c *wire.Conn, method, path, body string) (token int64, err error) {
	a, err := c.Call(callLimit, method, path, body)
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("%d %s: %s", a.Status, a.Code, a.Detail)
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return a.Token, nil
}
