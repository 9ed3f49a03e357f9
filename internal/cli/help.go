package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// printHelp prints the examples first, because most readers look for one; then the usage, what the command does, its flags and its exit
// codes. The order of the library's own text puts the examples after all explanations.
func printHelp(cmd *cobra.Command, _ []string) {
	var help strings.Builder
	section := func(title, text string) {
		if text = strings.TrimRight(text, " \n"); text != "" {
			fmt.Fprintf(&help, "\n%s%s\n", title, text)
		}
	}
	help.WriteString(cmd.Short + "\n")
	section("Examples:\n", cmd.Example)
	usage := ""
	if cmd.Runnable() {
		usage = "  " + cmd.UseLine() + "\n"
	}
	if cmd.HasAvailableSubCommands() {
		usage += "  " + cmd.CommandPath() + " [command]"
	}
	section("Usage:\n", usage)
	section("", cmd.Long)
	section("Commands:\n", commandsOf(cmd))
	section("Flags:\n", cmd.LocalFlags().FlagUsages())
	section("Flags of all commands:\n", cmd.InheritedFlags().FlagUsages())
	if !strings.Contains(cmd.Long, exitcode.Title) {
		section("", exitcode.Short)
	}
	_, _ = io.WriteString(cmd.OutOrStdout(), help.String())
}

func commandsOf(cmd *cobra.Command) string {
	var list strings.Builder
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			fmt.Fprintf(&list, "  %-*s %s\n", c.NamePadding(), c.Name(), c.Short)
		}
	}
	return list.String()
}
