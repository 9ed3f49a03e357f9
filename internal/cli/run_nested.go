package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// heldVariable lists the locks of all outer `run`s, as JSON.
const heldVariable = "LOCKSIDECAR_HELD"

// outerLock is a lock that a `run` holds while its CMD runs.
type outerLock struct {
	Socket  string `json:"socket"`
	Key     string `json:"key"`
	Session string `json:"session"` // the name, which others see
	Shared  bool   `json:"shared,omitempty"`
}

func outerLocks(environ []string) (held []outerLock) {
	for _, v := range environ {
		if text, is := strings.CutPrefix(v, heldVariable+"="); is {
			_ = json.Unmarshal([]byte(text), &held) // a foreign text says nothing
		}
	}
	return held
}

func withOwnLock(environ []string, own outerLock) string {
	text, _ := json.Marshal(append(outerLocks(environ), own)) //nolint:errchkjson // strings only
	return string(text)
}

// refuseOwnLock refuses a wait for a lock that an outer `run` holds: its CMD would wait for itself. A process that has outlived
// that `run` may wait, so the sidecar is asked who holds the lock. Permits of one semaphore do not exclude each other.
func refuseOwnLock(c *client.Client, key string, body acquireBody) error {
	if body.WaitMS == 0 {
		return nil
	}
	both := body.Mode == client.ModeShared && body.Limit != 1
	for _, outer := range outerLocks(os.Environ()) {
		if outer.Key != key || outer.Socket != c.Socket || outer.Shared && both {
			continue
		}
		var lock client.Lock
		if c.Call(http.MethodGet, client.LockPath(key), nil, &lock, 0) != nil || !holds(&lock, outer.Session) {
			continue
		}
		return exitcode.With(exitcode.NoLock, fmt.Errorf(
			"not waiting: this command runs under `locksidecar run %s` (%s), which holds the lock until it ends; the two would wait for each other",
			client.Printable(key), client.Printable(outer.Session)))
	}
	return nil
}

func holds(lock *client.Lock, session string) bool {
	is := func(h *client.Holder) bool { return h != nil && h.Session != nil && *h.Session == session }
	return is(lock.Holder) || slices.ContainsFunc(lock.Holders, func(h client.SharedHolder) bool { return is(&h.Holder) })
}
