package cli

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

// startConsole runs the console until the test ends, and waits for its first line.
func startConsole(t *testing.T, args ...string) (line string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, ended := &logtest.Log{}, make(chan error, 1)
	root := newRoot(&app{source: config.FromMap(nil)})
	root.SetArgs(append([]string{"console", "--socket", "none"}, args...))
	root.SetOut(out)
	go func() { ended <- root.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	out.Await(t, "Ctrl-C")
	return out.String()
}

func TestConsoleSaysWhereItIs(t *testing.T) {
	line := startConsole(t, "--listen", "127.0.0.1:0")
	_, url, _ := strings.Cut(strings.Fields(line)[3], "http")
	resp, err := http.Get("http" + url)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable { // there is no sidecar
		t.Errorf("%s: %s", line, resp.Status)
	}
	// A browser that went to this address would be refused: it must use the name.
	line = startConsole(t, "--listen", ":0", "--host", "locks.example.com", "--host", "b.example.com:8443")
	if !strings.HasPrefix(line, "the console serves locks.example.com, b.example.com:8443 on [::]:") {
		t.Error(line)
	}
}

// Another console, or another program, has the port.
func TestConsoleSaysThatItsPortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	root := newRoot(&app{source: config.FromMap(nil)})
	root.SetArgs([]string{"console", "--listen", taken.Addr().String()})
	if err := root.ExecuteContext(t.Context()); exitcode.Of(err) != exitcode.CannotOpen || !strings.Contains(err.Error(), "choose another address with --listen") {
		t.Error(err)
	}
}

// A console that is not on loopback needs a name, so that nobody makes one by mistake.
func TestConsoleRefusesAddresses(t *testing.T) {
	for _, c := range []struct{ args, why string }{
		{"--listen :0", "is not loopback"},
		{"--listen 0.0.0.0:0", "is not loopback"},
		{"--listen [::]:0", "is not loopback"},
		{"--listen locks.example.com:0", "is not loopback"},
		{"--listen :0 --host=", "--host"},
		{"--listen 127.0.0.1:0 --host https://locks.example.com", "without https://"},
		{"--listen 127.0.0.1:0 --host locks.example.com/", "without https://"},
		{"--listen 127.0.0.1", "must be host:port"},
		{"--listen 127.0.0.1:", "must be host:port"},
		{"--listen 127.0.0.1:0 --trace-url https://traces.example.com", "{trace_id}"},
	} {
		ended, stop := context.WithCancel(t.Context())
		stop() // A console that were not refused would end at once.
		root := newRoot(&app{source: config.FromMap(nil)})
		root.SetArgs(append([]string{"console"}, strings.Fields(c.args)...))
		if err := root.ExecuteContext(ended); exitcode.Of(err) != exitcode.Usage || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}
