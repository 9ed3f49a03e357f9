// Package stored looks into a store, past the sidecars: who waits in the queues, and what is left when all clients have gone.
package stored

import (
	"context"
	"encoding/json"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// View is a way into a store that takes no part in the faults. It is not safe for concurrent use. After an error, the next
// look connects anew.
type View interface {
	// Lines are the queues of all keys at one moment, each a [history.Line] without its times. A waiter that has an
	// outcome waits no more.
	Lines(ctx context.Context) ([]history.Op, error)
	// Left is what the store holds for clients: locks and shares that count as held, waiters, signals, watchers, and
	// living leases, but for those of sidecars that run in these pods.
	Left(ctx context.Context, pods []string) ([]string, error)
	// Close ends the connection, and returns when nothing goes on any more.
	Close()
}

// lookLimit is how long a look may take.
const lookLimit = 5 * time.Second

// caller is the operation that a client names in the data of its acquire.
func caller(data []byte) (string, error) {
	var named struct {
		Op string `json:"op"`
	}
	if len(data) == 0 {
		return "", nil
	}
	err := json.Unmarshal(data, &named)
	return named.Op, err
}
