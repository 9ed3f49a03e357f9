package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/config"
)

const waitForever = "forever"

const acquireLong = `Acquire a lock that does not depend on a connection (bind:ttl), and print only its fencing
token on standard output. The lock ends after --ttl unless it is released before. Every
caller that knows key and token, in any pod, can release it, and tokens can be guessed from
other tokens. If callers do not trust each other, use "run", whose lock only its own session
can release.

Each call has an id. If the answer is lost, the command releases the lock by this id. If you
choose the id (--request-id), repeat the call instead: the same id gets the same grant.

If another caller has the lock, the exit code is 75, and standard error shows the holder.`

const acquireExample = `  token=$(locksidecar acquire backup:nightly --ttl 1h) || exit
  run-backup --fencing-token "$token"
  locksidecar release backup:nightly --token "$token"

  # Wait up to 30 seconds, or for ever
  locksidecar acquire backup:nightly --ttl 1h --wait 30s
  locksidecar acquire backup:nightly --ttl 1h --wait

  # One of at most five at a time
  locksidecar acquire import:s3 --ttl 10m --limit 5`

type acquireBody struct {
	Bind      string          `json:"bind,omitempty"`
	TTLMS     int64           `json:"ttl_ms,omitempty"`
	WaitMS    int64           `json:"wait_ms,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Mode      string          `json:"mode,omitempty"`
	Limit     int             `json:"limit,omitempty"`
	RequestID string          `json:"request_id"`
}

// addFlags adds the flags that `run` also has.
func (b *acquireBody) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Func("wait", "wait in the queue for a `duration`; alone, without one: for ever", func(text string) error {
		switch text {
		case "": // an empty variable in a script
			text = "0s"
		case waitForever:
			b.WaitMS = -1
			return nil
		}
		return setMilliseconds(&b.WaitMS, text)
	})
	flags.Lookup("wait").NoOptDefVal = waitForever
	flags.Func("data", "`JSON` that others see as part of the holder", func(text string) error {
		if text != "" && !json.Valid([]byte(text)) {
			return errors.New("it is not JSON (a text needs its quotes: '\"text\"')")
		}
		b.Data = json.RawMessage(text)
		return nil
	})
	flags.BoolFunc("shared", "hold the lock together with others that are shared, not alone", func(text string) error {
		on, err := strconv.ParseBool(text)
		if b.Mode = ""; on {
			b.Mode = client.ModeShared
		}
		return err
	})
	flags.Func("limit", "shared, with at most `N` holders at a time, from 1 to 1000; all callers of a key name the same N", func(text string) (err error) {
		b.Mode = client.ModeShared
		if b.Limit, err = strconv.Atoi(text); err != nil || b.Limit < 1 || b.Limit > maxHolders {
			return fmt.Errorf("allowed: 1 to %d", maxHolders)
		}
		return nil
	})
}

const maxHolders = 1000

// options are those of the client for Go.
func (b *acquireBody) options() (opts []locksidecar.Option) {
	if b.WaitMS >= 0 {
		opts = append(opts, locksidecar.Wait(b.wait()))
	}
	if len(b.Data) > 0 {
		opts = append(opts, locksidecar.Data(b.Data))
	}
	if b.Mode == client.ModeShared {
		opts = append(opts, locksidecar.Shared())
	}
	if b.Limit != 0 {
		opts = append(opts, locksidecar.Limit(b.Limit))
	}
	return opts
}

func (b *acquireBody) wait() time.Duration { return time.Duration(b.WaitMS) * time.Millisecond }

func setMilliseconds(field *int64, text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d != d.Truncate(time.Millisecond) {
		return errors.New("allowed: a duration of whole milliseconds, such as 30s or 500ms" + config.MissingUnit(text))
	}
	*field = d.Milliseconds()
	return nil
}

// setTTL refuses 0, which on the wire is the sidecar's default. The sidecar checks the limits.
func setTTL(field *int64, text string) error {
	if err := setMilliseconds(field, text); err != nil {
		return err
	}
	if *field == 0 {
		return errors.New("allowed: from 500ms to 24h")
	}
	return nil
}

func (a *app) acquireCommand() *cobra.Command {
	body := acquireBody{Bind: "ttl"}
	cmd := &cobra.Command{
		Use:     "acquire KEY --ttl DURATION",
		Short:   "Acquire a lock for a time and print its fencing token",
		Long:    acquireLong,
		Example: acquireExample,
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if body.TTLMS == 0 {
				return usagef("--ttl is missing: how long shall the lock last? For instance --ttl 60s")
			}
			shared := body.RequestID != ""
			body.RequestID = cmp.Or(body.RequestID, uuid.NewString())
			c := a.newClient()
			if err := refuseOwnLock(c, args[0], body); err != nil {
				return err
			}
			signal.Ignore(syscall.SIGTSTP) // a stopped process would be granted the lock, and keep it
			token, err := acquire(c, args[0], body, shared)
			if err != nil {
				return err
			}
			signal.Ignore(syscall.SIGPIPE)
			if _, err = fmt.Fprintln(cmd.OutOrStdout(), token); err != nil && !shared {
				_ = releaseRequest(c, args[0], body.RequestID) // nobody knows the token
			}
			return err
		},
	}
	body.addFlags(cmd)
	cmd.Flags().Func("ttl", "the `duration` of the lock, from 500ms to 24h (required)", func(text string) error {
		return setTTL(&body.TTLMS, text)
	})
	cmd.Flags().StringVar(&body.RequestID, "request-id", "", "a `UUID` of your own that makes the call repeatable: the same id gets the same grant")
	return cmd
}

// acquire returns the token. If there is no answer, it releases by the request id. It does not if the caller
// chose the id (shared), because an earlier call may have reported the grant.
func acquire(c *client.Client, key string, body acquireBody, shared bool) (token int64, err error) {
	var grant struct {
		Token int64 `json:"token"`
	}
	err = c.Call(http.MethodPut, client.LockPath(key), body, &grant, body.wait())
	if _, unanswered := errors.AsType[*client.UnansweredError](err); !unanswered {
		return grant.Token, err
	}
	if !shared && releaseRequest(c, key, body.RequestID) == nil {
		return 0, err
	}
	return 0, fmt.Errorf("%w; it may have granted the lock: `acquire` with --request-id %s repeats the call, `release` releases the lock",
		err, client.Printable(body.RequestID))
}

func releaseRequest(c *client.Client, key, id string) error {
	return c.WithPatience(releasePatience).Call(http.MethodDelete, client.LockPath(key)+requestQuery(id), nil, nil, 0)
}
