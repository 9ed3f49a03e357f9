// Package cli contains the commands with their flags and output. Package sidecar implements `serve`. Most other
// commands are small clients of its socket.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
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

// newClient uses --socket, or the variables of the clients, as these do.
func (a *app) newClient() *client.Client {
	if url, _ := a.source.Lookup("LOCKSIDECAR_URL"); url != "" && a.socket == "" {
		return client.NewOverURL(a.version)
	}
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
	refuseOtherShells(root) // after SetOut: the library notes where it prints
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
			return withHelp(cmd, "no command given: `locksidecar serve` runs the sidecar")
		},
		// main prints the error once. The usage text would hide it.
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
	}
	root.SetHelpFunc(printHelp)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see `%s --help`", plain(err), cmd.CommandPath())
	})
	root.PersistentFlags().StringVar(&a.socket, "socket", "",
		"path of the sidecar's socket (default $LOCKSIDECAR_URL, $LOCKSIDECAR_SOCKET, else "+config.DefaultSocket+" if this folder is there, else ~/"+config.HomeSocket+")")
	// This is not cobra's own flag: for its template, the linker keeps 6 MB.
	root.Flags().BoolVarP(&showVersion, "version", "v", false, "print the versions, as the command does")
	root.AddCommand(a.serveCommand(), a.csiCommand(), a.nodeCommand(), a.migrateCommand(), a.versionCommand(),
		a.healthCommand(), a.getCommand(), a.lsCommand(), a.topCommand(), a.eventsCommand(), a.waitersCommand(), a.deadlocksCommand(), a.statsCommand(), a.consoleCommand(), a.acquireCommand(), a.releaseCommand(), a.stopCommand(), a.runCommand(), a.injectCommand())
	return root
}

// withHelp prints the help to standard error, and returns the error. Without an argument, nothing is done, and a supervisor or a
// script must not take that for success.
func withHelp(cmd *cobra.Command, format string, args ...any) error {
	cmd.SetOut(cmd.ErrOrStderr())
	if err := cmd.Help(); err != nil {
		return err
	}
	return usagef(format, args...)
}

// refuseOtherShells makes `completion tcsh` an error. The library prints help, which `source <(…)` would run.
func refuseOtherShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			cmd.Args = noCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				return withHelp(cmd, "no shell given: bash, zsh, fish or powershell")
			}
		}
	}
}

// plain says what a flag allows, in place of an error of strconv or time.
func plain(err error) error {
	cause := errors.Unwrap(err)
	if cause == nil {
		return err
	}
	allowed := ""
	if number, ok := errors.AsType[*strconv.NumError](cause); ok {
		allowed = map[string]string{"ParseInt": "a whole number", "ParseBool": "true or false"}[number.Func]
	} else if strings.HasPrefix(cause.Error(), "time: ") {
		allowed = "a duration, such as 30s or 500ms"
		if invalid, ok := errors.AsType[interface {
			error
			GetValue() string
		}](err); ok {
			allowed += config.MissingUnit(invalid.GetValue())
		}
	}
	if allowed == "" {
		return err
	}
	return errors.New(strings.TrimSuffix(err.Error(), cause.Error()) + "allowed: " + allowed)
}

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "; did you mean `" + strings.Join(near, "` or `") + "`?"
	}
	return usagef("unknown command %q%s; see `%s --help`", args[0], hint, cmd.CommandPath())
}

func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s; usage: %s", given(args), cmd.UseLine())
		}
		return nil
	}
}

// given quotes the arguments, because one of them may have been meant as the value of a flag.
func given(args []string) string {
	switch len(args) {
	case 0:
		return "no argument given"
	case 1:
		return fmt.Sprintf("1 argument given (%q)", args[0])
	default:
		return fmt.Sprintf("%d arguments given (%q)", len(args), args)
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
