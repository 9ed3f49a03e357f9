package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/valyala/fasthttp"
)

const releaseLong = `Release a lock of no connection (bind:ttl), under the token that its acquire
printed. A lock that is not held under this token any more: exit code 77.

With --force and without a token: break a lock, whoever holds it. Its holder is
told that it has lost it, if it lives; nothing can stop a holder that does not
listen, so whatever the lock protects should check fencing tokens. It returns when
the lock is free, at the latest when its lease ends. The sidecar must allow it
(LOCKSIDECAR_ALLOW_FORCE=true); if it does not, or nobody holds the lock: exit
code 77.`

func (a *app) releaseCommand() *cobra.Command {
	var token int64
	var force bool
	var asJSON *bool
	cmd := &cobra.Command{
		Use:     "release KEY (--token TOKEN | --force)",
		Short:   "Release a lock that was acquired with `acquire`, or break a lock",
		Long:    releaseLong,
		Example: "  locksidecar release backup:nightly --token 42\n  locksidecar release backup:nightly --force",
		Args:    exactly(1),

		ValidArgsFunction: a.completeKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			query, verb, wait, err := releaseQuery(token, cmd.Flags().Changed("token"), force)
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := a.newClient().call(fasthttp.MethodDelete, lockPath(args[0])+query, nil, &answer, wait); err != nil {
				return err
			}
			if *asJSON {
				return writeJSON(cmd.OutOrStdout(), answer)
			}
			var released struct {
				HeldMS int64 `json:"held_ms"`
			}
			if err := decode(answer, &released); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s, held for %s\n", verb, printable(args[0]), human(released.HeldMS))
			return err
		},
	}
	asJSON = addJSON(cmd)
	cmd.Flags().Int64Var(&token, "token", 0, "the fencing token under which the lock is held")
	cmd.Flags().BoolVar(&force, "force", false, "break the lock, whoever holds it")
	return cmd
}

// releaseQuery is the query of a release. verb is what it does, and wait the time
// that it may take, below zero as long as it takes.
func releaseQuery(token int64, given, force bool) (query, verb string, wait time.Duration, err error) {
	switch {
	case force && given:
		return "", "", 0, usagef("--token and --force do not go together: with its token a lock is released, not broken")
	case force:
		return "?force=true", "broke", -1, nil
	case token < 1:
		return "", "", 0, usagef("--token is missing or not a token: give the number that `acquire` printed")
	}
	return "?token=" + strconv.FormatInt(token, 10), "released", 0, nil
}
