// Package cli contains the commands with their flags and output. Package sidecar implements `serve`. Most other
// commands are small clients of its socket.
package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const rootLong = `locksidecar grants distributed locks over HTTP on a Unix socket.

It runs in a pod. The apps of the pod ask it for locks. A lock of a connection is
released when the connection closes, for any reason. The command "serve" runs the
sidecar; most other commands call a running sidecar.

The configuration is read from LOCKSIDECAR_ variables, which "serve --help" lists.
By default, the locks live in the process (memory://), so only the apps of one
sidecar exclude each other.`

const rootExample = `  # Serve on another socket
  locksidecar serve --socket /tmp/ls.sock

  # Get a lock for a minute, with curl or with this program
  curl --unix-socket /tmp/ls.sock -X PUT http://l/v1/locks/deploy:prod \
       -d '{"bind":"ttl","ttl_ms":60000}'
  locksidecar --socket /tmp/ls.sock acquire deploy:prod --ttl 60s

  # Hold a lock while a command runs
  locksidecar --socket /tmp/ls.sock run report:daily --wait=30s -- ./report.sh

  # Watch the held locks, with their holders and ages
  locksidecar --socket /tmp/ls.sock top

  # Show waiting calls and deadlocks
  locksidecar --socket /tmp/ls.sock waiters report:daily
  locksidecar --socket /tmp/ls.sock deadlocks

  # Show the lock, and release it with the printed token
  locksidecar --socket /tmp/ls.sock get deploy:prod
  locksidecar --socket /tmp/ls.sock release deploy:prod --token 1`

type app struct {
	version string
	source  config.Source
	// socket is the value of --socket.
	socket string
}

// newClient uses --socket, or the sidecar's variable.
func (a *app) newClient() *client.Client {
	return client.New(cmp.Or(a.socket, config.Socket(a.source)), a.version)
}

// Execute runs the command line. version is set by the linker, or empty. Package exitcode defines the exit codes.
func Execute(version string, args []string, stdout, stderr io.Writer) error {
	return execute(&app{version: buildVersion(version), source: config.Environment()}, args, stdout, stderr)
}

func execute(a *app, args []string, stdout, stderr io.Writer) error {
	root := newRoot(a)
	root.SetArgs(joinWait(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.Execute()
}

func newRoot(a *app) *cobra.Command {
	var showVersion bool
	root := &cobra.Command{
		Use:     "locksidecar",
		Short:   "Distributed locks for the apps of a pod, over a Unix socket",
		Long:    rootLong + "\n\n" + exitcode.Help,
		Example: rootExample,
		Args:    noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if showVersion {
				return a.printVersion(cmd)
			}
			return cmd.Help()
		},
		// main prints the error once. The usage text would hide it.
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see `%s --help`", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVar(&a.socket, "socket", "",
		"path of the sidecar's socket (default $LOCKSIDECAR_SOCKET, else "+config.DefaultSocket+")")
	// This is not cobra's own flag: for its template, the linker keeps 6 MB.
	root.Flags().BoolVarP(&showVersion, "version", "v", false, "print the versions, as the command does")
	root.AddCommand(a.serveCommand(), a.migrateCommand(), a.versionCommand(),
		a.healthCommand(), a.getCommand(), a.lsCommand(), a.topCommand(), a.waitersCommand(), a.deadlocksCommand(), a.statsCommand(), a.consoleCommand(), a.acquireCommand(), a.releaseCommand(), a.stopCommand(), a.runCommand(), a.injectCommand())
	return root
}

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "; did you mean `" + strings.Join(near, "` or `") + "`?"
	}
	return usagef("unknown command %q%s; see `locksidecar --help`", args[0], hint)
}

func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%d arguments given; usage: %s", len(args), cmd.UseLine())
		}
		return nil
	}
}

// joinWait allows --wait alone (for ever) or with its duration as the next argument. The library accepts only
// --wait=30s.
func joinWait(args []string) []string {
	joined := make([]string, 0, len(args)) // for nil, the library would read the process's arguments
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(joined, args[i:]...)
		}
		if args[i] == "--wait" && i+1 < len(args) && isDuration(args[i+1]) {
			joined = append(joined, "--wait="+args[i+1])
			i++
			continue
		}
		joined = append(joined, args[i])
	}
	return joined
}

func isDuration(s string) bool {
	_, err := time.ParseDuration(s)
	return err == nil
}

func usagef(format string, args ...any) error {
	return exitcode.With(exitcode.Usage, fmt.Errorf(format, args...))
}
