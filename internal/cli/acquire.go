package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

const waitForever = "forever"

const acquireLong = `Acquire a lock that belongs to no connection (bind:ttl) and print its fencing
token, alone, on standard output. The lock ends after --ttl unless it is
released before. It obeys every caller that sends key and token, from any pod, and tokens
can be guessed from one's own: where callers do not trust each other, use "run",
whose lock only its own session can release.

Each call has an id, so that a lock whose answer is lost on the way does not last
for nobody: it is released by that id. With an id of your own (--request-id), call
again: the same id gets the same grant.

Somebody else has it: exit code 75, with the holder on standard error.`

const acquireExample = `  token=$(locksidecar acquire backup:nightly --ttl 1h) || exit
  run-backup --fencing-token "$token"
  locksidecar release backup:nightly --token "$token"

  # Wait up to 30 seconds, or for ever
  locksidecar acquire backup:nightly --ttl 1h --wait 30s
  locksidecar acquire backup:nightly --ttl 1h --wait`

type acquireBody struct {
	Bind      string          `json:"bind"`
	TTLMS     int64           `json:"ttl_ms"`
	WaitMS    int64           `json:"wait_ms,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	RequestID string          `json:"request_id"`
}

func (a *app) acquireCommand() *cobra.Command {
	var ttl time.Duration
	var wait, data, requestID string
	cmd := &cobra.Command{
		Use:     "acquire KEY --ttl DURATION",
		Short:   "Acquire a lock for a time and print its fencing token",
		Long:    acquireLong,
		Example: acquireExample,
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := newAcquireBody(ttl, wait, data, requestID)
			if err != nil {
				return err
			}
			token, err := acquire(a.newClient(), args[0], body, requestID != "")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&ttl, "ttl", 0, "how long the lock lasts, from 500ms to 24h (required)")
	flags.StringVar(&wait, "wait", "", "wait in the queue so long; alone, without a duration: for ever")
	flags.Lookup("wait").NoOptDefVal = waitForever
	flags.StringVar(&data, "data", "", "JSON that others see as part of the holder")
	flags.StringVar(&requestID, "request-id", "", "a UUID of your own that makes the call repeatable: the same id gets the same grant")
	return cmd
}

// acquire returns the token. Without an answer it releases by request id, unless the id is shared: then
// an earlier call may have told its caller of it.
func acquire(c *client, key string, body acquireBody, shared bool) (token int64, err error) {
	var grant struct {
		Token int64 `json:"token"`
	}
	err = c.call(http.MethodPut, lockPath(key), body, &grant, time.Duration(body.WaitMS)*time.Millisecond)
	if _, unanswered := errors.AsType[*unansweredError](err); !unanswered {
		return grant.Token, err
	}
	if !shared && c.withPatience(releasePatience).call(http.MethodDelete, lockPath(key)+requestQuery(body.RequestID), nil, nil, 0) == nil {
		return 0, err
	}
	return 0, fmt.Errorf("%w; it may have granted the lock: `acquire` with --request-id %s asks again, `release` gives it back",
		err, printable(body.RequestID))
}

// newAcquireBody checks only what the sidecar could not say better.
func newAcquireBody(ttl time.Duration, wait, data, requestID string) (acquireBody, error) {
	body := acquireBody{Bind: "ttl", RequestID: requestID}
	if requestID == "" {
		body.RequestID = uuid.NewString()
	}
	var err error
	if ttl == 0 {
		return body, usagef("--ttl is missing: how long shall the lock last? For instance --ttl 60s")
	}
	if body.TTLMS, err = milliseconds("--ttl", ttl); err != nil {
		return body, err
	}
	if body.WaitMS, err = waitMilliseconds(wait); err != nil {
		return body, err
	}
	body.Data, err = jsonFlag("--data", data)
	return body, err
}

func jsonFlag(flag, value string) (json.RawMessage, error) {
	if value == "" {
		return nil, nil
	}
	if !json.Valid([]byte(value)) {
		return nil, usagef("%s is not JSON: %s (a text needs its quotes: '\"text\"')", flag, printable(value))
	}
	return json.RawMessage(value), nil
}

func waitMilliseconds(wait string) (int64, error) {
	switch wait {
	case "":
		return 0, nil
	case waitForever:
		return -1, nil
	}
	d, err := time.ParseDuration(wait)
	if err != nil || d < 0 {
		return 0, usagef("--wait is %q; allowed: a duration such as 30s, or nothing to wait for ever", wait)
	}
	return milliseconds("--wait", d)
}

func milliseconds(flag string, d time.Duration) (int64, error) {
	if d != d.Truncate(time.Millisecond) {
		return 0, usagef("%s is %s; allowed: whole milliseconds", flag, d)
	}
	return d.Milliseconds(), nil
}
