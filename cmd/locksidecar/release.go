package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/valyala/fasthttp"
)

func (a *app) releaseCommand() *cobra.Command {
	var token int64
	cmd := &cobra.Command{
		Use:   "release KEY --token TOKEN",
		Short: "Release a lock that was acquired with `acquire`",
		Long: `Release a lock of no connection (bind:ttl), under the token that its acquire
printed. A lock that is not held under this token any more: exit code 77.`,
		Example: "  locksidecar release backup:nightly --token 42",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if token < 1 {
				return usagef("--token is missing or not a token: give the number that `acquire` printed")
			}
			var answer struct {
				HeldMS int64 `json:"held_ms"`
			}
			path := lockPath(args[0]) + "?token=" + strconv.FormatInt(token, 10)
			if err := a.newClient().call(fasthttp.MethodDelete, path, nil, &answer, 0); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "released %s, held for %s\n", args[0], human(answer.HeldMS))
			return err
		},
	}
	cmd.Flags().Int64Var(&token, "token", 0, "the fencing token under which the lock is held (required)")
	return cmd
}
