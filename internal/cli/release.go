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
)

const releaseLong = `Release a lock of no connection (bind:ttl), under the token that its acquire
printed, or by the id that it was called with (--request-id); there need not be a
lock then. A lock that is not held under this token any more: exit code 77. No other
proof is asked for, and tokens can be guessed: see "acquire --help".

With --force: break the lock of its present holder, or of all holders that share it; with
--force and --token, only the one that holds it under that token. A later holder keeps its lock. The holder is told
that it has lost it, if it lives; nothing can stop a holder that does not listen,
so whatever the lock protects should check fencing tokens. It returns when that
grant is over, at the latest when its lease ends. The sidecar must allow it
(LOCKSIDECAR_ALLOW_FORCE=true); if it does not, or nobody holds the lock (under
that token): exit code 77.`

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
			if err := a.newClient().call(http.MethodDelete, lockPath(args[0])+query, nil, &answer, wait); err != nil {
				return err
			}
			return show(cmd, answer, func(released *releaseAnswer, w io.Writer) (err error) {
				if !released.Released {
					_, err = fmt.Fprintf(w, "nothing is held under this id of %s\n", printable(args[0]))
				} else {
					_, err = fmt.Fprintf(w, "%s %s, held for %s\n", verb, printable(args[0]), human(released.HeldMS))
				}
				return err
			})
		},
	}
	addJSON(cmd)
	cmd.Flags().Int64Var(&o.token, "token", 0, "the fencing token under which the lock is held")
	cmd.Flags().StringVar(&o.requestID, "request-id", "", "release what `acquire` with this id has got, if anything; it may be repeated")
	cmd.Flags().BoolVar(&o.force, "force", false, "break the lock, whoever holds it")
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

// releaseQuery is the query of a release. verb is what it does, wait its limit, below zero for none.
func releaseQuery(o releaseOptions) (query, verb string, wait time.Duration, err error) {
	token := "token=" + strconv.FormatInt(o.token, 10)
	switch {
	case o.requestID != "" && (o.hasToken || o.force):
		return "", "", 0, usagef("--request-id stands alone: it says what is released")
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
