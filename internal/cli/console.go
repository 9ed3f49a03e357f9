package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/console"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// consoleStop limits the time that the console's last answers may take.
const consoleStop = 5 * time.Second

func (a *app) consoleCommand() *cobra.Command {
	var config console.Config
	var listen string
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Serve a web page with the locks: holders, queues, circles, totals",
		Long: `Serve a web page on loopback with the held locks of all pods of the namespace: who holds
them, for how long, who waits, which sessions wait for each other in a circle, and the counts
of the database. The page of a key shows its events as they happen. The pages update by
themselves, and work without JavaScript.

Without --allow-stop and --allow-force, the pages change nothing. The console knows no users:
everyone who reaches its address sees all locks, and may press its buttons. So it listens on
loopback. Another address needs --host, the name under which browsers reach the console; put
it behind an ingress that authenticates.`,
		Example: `  locksidecar console
  locksidecar console --allow-stop --trace-url 'https://jaeger.example.com/trace/{trace_id}'
  locksidecar console --listen :15625 --host locks.example.com   # behind an ingress with a login`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkConsole(listen, config.Hosts); err != nil {
				return err
			}
			config.Client = a.newClient()
			return serveConsole(cmd, listen, config)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:15625", "host:port to listen on")
	flags.StringArrayVar(&config.Hosts, "host", nil, "a name under which browsers reach the console, besides localhost; may be repeated. It allows an address that is not loopback, where the page is without a login")
	flags.StringVar(&config.TraceURL, "trace-url", "", "make links to traces: a URL with {trace_id}, and perhaps {span_id}")
	flags.BoolVar(&config.AllowStop, "allow-stop", false, "add a button that asks a holder to stop")
	flags.BoolVar(&config.AllowForce, "allow-force", false, "add a button that breaks a lock (the sidecar must allow it, too: LOCKSIDECAR_ALLOW_FORCE=true)")
	return cmd
}

func checkConsole(listen string, hosts []string) error {
	host, port, err := net.SplitHostPort(listen)
	switch {
	case err != nil || port == "":
		return usagef("--listen %q: it must be host:port, such as 127.0.0.1:15625", listen)
	case !isLoopback(host) && len(hosts) == 0:
		return usagef("--listen %q is not loopback: everyone who reaches it sees all locks. If that is meant, name with --host how browsers reach it", listen)
	}
	for _, name := range hosts {
		if name == "" || strings.Contains(name, "/") {
			return usagef("--host %q: it must be a name such as locks.example.com, without https:// and without a path", name)
		}
	}
	return nil
}

func isLoopback(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }

// whereOf is the address of a console, for its user: elsewhere than on loopback, browsers must use one of the names.
func whereOf(listen string, address net.Addr, hosts []string) string {
	if host, _, _ := net.SplitHostPort(listen); isLoopback(host) {
		return fmt.Sprintf("http://%s/", address)
	}
	return fmt.Sprintf("%s on %s", strings.Join(hosts, ", "), address)
}

func serveConsole(cmd *cobra.Command, listen string, config console.Config) error {
	s, release := onSignals(cmd.Context())
	defer release()
	server, err := console.New(s.stop, config)
	if err != nil {
		return usagef("--trace-url %q: %w", config.TraceURL, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(s.stop, "tcp", listen)
	if err != nil {
		return exitcode.With(exitcode.CannotOpen, fmt.Errorf("%w; choose another address with --listen", err))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "the console serves %s (Ctrl-C ends it)\n", whereOf(listen, listener.Addr(), config.Hosts))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(console.Limit(listener)) }()
	select {
	case err := <-ended:
		return err
	case <-s.stop.Done():
	}
	limit, cancel := context.WithTimeout(s.hurry, consoleStop)
	defer cancel()
	_ = server.Shutdown(limit)
	_ = server.Close()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
