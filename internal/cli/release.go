package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
)

const releaseLong = `Release a lock that does not depend on a connection (bind:ttl), by the token that "acquire"
printed, or by the id of the call (--request-id), which need not have a lock. If the lock is
no longer held under this token, the exit code is 77. Key and token are enough, and tokens
can be guessed: see "acquire --help".

With --force, break the lock of its present holders, or with --force and --token, only that
of the holder with this token. A later holder keeps its lock. A living holder is notified
that it has lost the lock. A holder that ignores this cannot be stopped, so the protected
resource should check fencing tokens. The command returns when the grant is over, at the
latest when its lease ends. The sidecar must allow it (LOCKSIDECAR_ALLOW_FORCE=true). The
exit code is 77 if it does not, or if the lock is not held (under that token).`

func (a *app) releaseCommand() *cobra.Command {
	var o releaseOptions
	cmd := &cobra.Command{
		Use:     "release KEY (--token TOKEN | --request-id UUID | --force [--token TOKEN])",
		Short:   "Release a lock that was acquired with `acquire`, or break a lock",
		Long:    releaseLong,
		Example: "  locksidecar release backup:nightly --token 42\n  locksidecar release backup:nightly --force",
		Args:    exactly(1),

		RunE: func(cmd *cobra.Command, args []string) error {
			o.hasToken = cmd.Flags().Changed("token")
			query, verb, wait, err := releaseQuery(o)
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := a.newClient().Call(http.MethodDelete, client.LockPath(args[0])+query, nil, &answer, wait); err != nil {
				return err
			}
			return show(cmd, answer, func(released *releaseAnswer, w io.Writer) (err error) {
				if !released.Released {
					_, err = fmt.Fprintf(w, "nothing is held under this id of %s\n", client.Printable(args[0]))
				} else {
					_, err = fmt.Fprintf(w, "%s %s, held for %s\n", verb, client.Printable(args[0]), client.Human(released.HeldMS))
				}
				return err
			})
		},
	}
	addJSON(cmd)
	cmd.Flags().Int64Var(&o.token, "token", 0, "the fencing token under which the lock is held")
	cmd.Flags().StringVar(&o.requestID, "request-id", "", "release what the `UUID` of an acquire has acquired, if anything; may be repeated")
	cmd.Flags().BoolVar(&o.force, "force", false, "break the lock of any holder")
	return cmd
}

type releaseAnswer struct {
	Released bool  `json:"released"`
	HeldMS   int64 `json:"held_ms"`
}

type releaseOptions struct {
	token           int64
	hasToken, force bool
	requestID       string
}

// releaseQuery is the query of a release. verb describes it for people. wait is its time limit, negative for none.
func releaseQuery(o releaseOptions) (query, verb string, wait time.Duration, err error) {
	token := "token=" + strconv.FormatInt(o.token, 10)
	switch {
	case o.requestID != "" && (o.hasToken || o.force):
		return "", "", 0, usagef("--request-id cannot be combined with the other flags, because it already names what is released")
	case o.requestID != "":
		return requestQuery(o.requestID), "released", 0, nil
	case o.force && !o.hasToken:
		return "?force=true", "broke", -1, nil
	case o.token < 1:
		return "", "", 0, usagef("--token is missing or not a token: give the number that `acquire` printed")
	case o.force:
		return "?force=true&" + token, "broke", -1, nil
	}
	return "?" + token, "released", 0, nil
}

func requestQuery(id string) string { return "?request_id=" + url.QueryEscape(id) }
