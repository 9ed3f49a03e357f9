package cli

import (
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// maxCompletions is how many keys are shown: for fewer, type another letter.
const maxCompletions = 200

// completionPatience is short: TAB does not wait for a sidecar that hangs. Tests do.
var completionPatience = time.Second

// completeKey completes KEY by the held keys. The shell shows them as they are, so a key that does
// something to a terminal is left out.
func (a *app) completeKey(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	query := url.Values{"scope": {"all"}, "limit": {strconv.Itoa(maxCompletions)}}
	if begun != "" {
		query.Set("prefix", begun)
	}
	page, err := a.newClient().withPatience(completionPatience).listPage(query)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp // an error's text would be completed
	}
	var keys []cobra.Completion
	for _, encoded := range page.Locks {
		var lock lockView
		if decode(encoded, &lock) == nil && printable(lock.Key) == lock.Key {
			keys = append(keys, lock.Key)
		}
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}

// completeKeyThenFiles is for `run`: after KEY stands a command.
func (a *app) completeKeyThenFiles(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeKey(cmd, args, begun)
}

// must is for what only a mistake in this program can make fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
