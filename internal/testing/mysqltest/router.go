package mysqltest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/process"
)

// The pool has room for the sessions of several backends. Without a delay, a session goes into it after each statement. Router only
// shares sessions of clients with TLS, because it needs their passwords.
const routerConfig = `[DEFAULT]
logging_folder = %[1]s
runtime_folder = %[1]s
data_folder = %[1]s
%[5]s
[logger]
level = info
[connection_pool]
max_idle_server_connections = 64
[routing:tests]
bind_address = 127.0.0.1
bind_port = %[2]d
destinations = %[3]s
routing_strategy = first-available
protocol = classic
client_ssl_mode = REQUIRED
client_ssl_cert = %[1]s/cert
client_ssl_key = %[1]s/key
server_ssl_mode = PREFERRED
connection_sharing = %[4]d
connection_sharing_delay = 0
`

// StartRouter puts a MySQL Router before a server until the end of the test, and returns host:port. share: it gives a session of the
// server to another client after each transaction. Clients need TLS.
func StartRouter(tb testing.TB, m *Server, share bool) (address string) {
	tb.Helper()
	folder, err := process.NewFolder(pgtest.Memory(), folderPrefix)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(folder) })
	port, err := pgtest.FreePort()
	if err != nil {
		tb.Fatal(err)
	}
	config, sharing := filepath.Join(folder, "config"), 0
	if share {
		sharing = 1
	}
	pair := certtest.New(tb).Issue("localhost", time.Now().Add(time.Hour))
	for name, content := range map[string][]byte{
		"config": fmt.Appendf(nil, routerConfig, folder, port, m.Address, sharing, routerPlugins()), "cert": pair.Cert, "key": pair.Key,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	if m.who != nil {
		if err := chownAll(folder, m.who); err != nil {
			tb.Fatal(err)
		}
	}
	log := filepath.Join(folder, "output")
	router, err := process.Start(exec.Command(program("mysqlrouter", "mysqlrouter"), "-c", config), m.who, log)
	if err != nil {
		tb.Fatalf("MySQL Router: %v", err)
	}
	tb.Cleanup(router.Kill)
	address = fmt.Sprintf("127.0.0.1:%d", port)
	for end := time.Now().Add(startLimit); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp", address); err == nil {
			_ = conn.Close()
			return address
		}
		if !router.Running() || time.Now().After(end) {
			tb.Fatalf("MySQL Router does not answer:\n%s", process.Tail(log))
		}
	}
}

// Through is a store's URL of the database at a Router. It does not check the Router's certificate.
func (d *Database) Through(router string) string { return d.At(router) + "?tls=skip-verify" }

// routerPlugins is the line that names the folder of Router's plugins if the programs are in a folder of test/fetch-deb.sh: Router itself
// looks only into that of an installation.
func routerPlugins() string {
	found, _ := filepath.Glob(filepath.Join(os.Getenv(ProgramsVariable), "..", "usr", "lib", "mysqlrouter", "plugin"))
	if len(found) == 0 {
		return ""
	}
	return "plugin_folder = " + found[0]
}
