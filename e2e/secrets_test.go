package e2e

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/locksidecar/locksidecar/internal/testing/otlptest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// secrets are texts that must stay secret, by description.
type secrets map[string]string

// operators are the operator's secrets of SECURITY.md.
var operators = secrets{
	"the password of the store's URL":        "pw-81f4c07a",
	"the query of the store's URL":           "query-5d2ba9e3",
	"a header for the collector":             "header-c93e016d",
	"the password of the collector's URL":    "collector-07be2d44",
	"a variable that the sidecar knows none": "unknown-4e7f90a1",
}

// notIn fails the test for each secret in a text.
func (all secrets) notIn(t *testing.T, where, text string) {
	t.Helper()
	for what, secret := range all {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s: contains %s: …%s…", where, what, text[max(0, at-200):min(len(text), at+100)])
		}
	}
}

// withSecrets adds a password and a query to the URL of a database.
func withSecrets(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), operators["the password of the store's URL"])
	q := u.Query()
	q.Set("sslpassword", operators["the query of the store's URL"])
	u.RawQuery = q.Encode()
	return u.String()
}

// secretEnv returns the environment of a sidecar with all secrets of its operator.
func secretEnv(more ...string) []string {
	return append(more,
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20"+operators["a header for the collector"],
		"LOCKSIDECAR_UNKNOWN="+operators["a variable that the sidecar knows none"])
}

// TestSecretsOfWorkingSidecars: secrets of apps and operators are not in the debug log, in spans,
// in metrics, or in answers to others.
// Proves: threat other app, threat core dump, threat telemetry reader
func TestSecretsOfWorkingSidecars(t *testing.T) {
	t.Parallel()
	r := otlptest.Start(t)
	database := cluster.NewDatabase(t)
	o := options{"STORE_URL": withSecrets(t, database), "ADMIN_ADDR": "127.0.0.1:0"}
	var both []*sidecar
	for range 2 {
		s := launchWith(t, folder(t), o, secretEnv(r.Env()...))
		s.await("ready", s.tryReady)
		both = append(both, s)
	}
	one, two := both[0], both[1]
	session := openSession(t, one.socket, `{"name":"named"}`)
	apps := secrets{
		"the id of a session": session.id, "a request id": requestID,
		"the data of a lock": "data-3b6a1f08", "a result": "result-e07d52c9", "baggage": "baggage-90ab7c15",
	}
	grants := useSecrets(t, one, two, session, apps, database)
	wrongWith(t, one, apps)
	for i, grant := range grants {
		apps[fmt.Sprintf("the id of grant %d", i)] = grant
	}
	all := secrets{}
	maps.Copy(all, operators)
	maps.Copy(all, apps)

	awaitSpans(t, r, "spans and metrics of both", func(f *forest) bool {
		return len(f.all("", "lock.held", internal)) > 0 && len(f.all("", "lock.stop", server)) > 0 && len(r.Metrics()) > 0
	})
	for _, s := range both {
		argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		all.notIn(t, "the list of processes", string(argv))
		all.notIn(t, "the figures", s.figures().text)
		_, admin := s.listening()
		for _, path := range []string{"/metrics", "/readyz", "/healthz", "/debug/pprof/", "/debug/vars"} {
			all.notIn(t, path+" for the network", answerOf(t, "http://"+admin+path))
		}
	}
	one.stop()
	// A process that is killed by a signal that may write a core file. Its last output is checked.
	two.signal(syscall.SIGQUIT)
	two.wait()
	if status := two.cmd.ProcessState.Sys().(syscall.WaitStatus); status.CoreDump() || status.Signaled() {
		t.Errorf("it ended with %v, and may have written its memory to disk", two.cmd.ProcessState)
	}
	if !strings.Contains(two.log.String(), "goroutine ") {
		t.Error("it did not print its stack")
	}
	for _, s := range both {
		all.notIn(t, "the log", s.log.String())
	}
	for what, secret := range all {
		if r.Contains(secret) {
			t.Errorf("%s was sent to the collector", what)
		}
	}
}

// useSecrets lets apps make all kinds of calls with their secrets, and returns the attempt ids.
func useSecrets(t *testing.T, one, two *sidecar, session *stream, apps secrets, database string) (grants []string) {
	a, b := dial(t, one.socket), dial(t, two.socket)
	data := `{"note":"` + apps["the data of a lock"] + `"}`
	_, _, trace := aTrace(1)
	with := []string{session.joins(), trace, "Baggage: user=" + apps["baggage"]}
	token := a.acquire("job", `{"data":`+data+`}`, with...)
	a.call("PATCH", lockPath("job"), fmt.Sprintf(`{"token":%d,"data":%s}`, token, data), with...).want(200, "")
	a.acquire("cron", `{"bind":"ttl","ttl_ms":60000,"data":`+data+`,"request_id":"`+requestID+`"}`, trace)

	// Others see the data, but no secret that would let them act for the app.
	hidden := maps.Clone(apps)
	delete(hidden, "the data of a lock")
	held := b.call("PUT", lockPath("job"), "").want(423, "held")
	if !strings.Contains(string(held.body), apps["the data of a lock"]) {
		t.Errorf("others do not see the data: %s", held.body)
	}
	hidden.notIn(t, "the view of a lock by others", string(held.body))
	hidden.notIn(t, "the list of locks by others", string(b.call("GET", "/v1/locks?scope=all", "").body))
	b.call("POST", stopPath("job"), "", trace).want(202, "")
	session.want("stop")

	// One call is handed the lock, and one is skipped.
	b.send("PUT", lockPath("job"), `{"wait_ms":-1,"data":`+data+`}`)
	skipped := dial(t, two.socket)
	skipped.send("PUT", lockPath("job"), `{"wait_ms":-1,"on_success":"skip"}`)
	one.awaitQueue("job", 2)
	grants = strings.Fields(pgtest.Query[string](t, database,
		"SELECT string_agg(attempt_id::text, ' ') FROM (SELECT attempt_id FROM locksidecar.waiters UNION SELECT attempt_id FROM locksidecar.locks) g"))
	a.releaseWith("job", token, "&outcome=success", `{"result":"`+apps["a result"]+`"}`, with...)
	b.read("PUT", lockPath("job")).granted()
	skipped.read("PUT", lockPath("job")).want(200, "")
	dropped := dial(t, one.socket)
	dropped.acquire("dropped", `{"data":`+data+`}`)
	dropped.close()
	one.await("the log line about the dropped lock", func() bool { return len(one.logged("connection closed while it held locks")) > 0 })
	return grants
}

// wrongWith makes calls that a sidecar refuses, with secrets in all places.
func wrongWith(t *testing.T, s *sidecar, apps secrets) {
	id, data := apps["the id of a session"], apps["the data of a lock"]
	for method, path := range map[string]string{
		"GET": "/v1/sessions/" + id, "POST": "/v1/sessions/" + id, "PUT": "/v1/locks/k?session=" + id,
		"PATCH": "/v1/stats?session=" + id, "DELETE": "/v1/locks/k?force=true&session=" + id,
	} {
		dial(t, s.socket).call(method, path, `{"data":"`+data+`","broken`, "Lock-Session: "+id)
	}
	dial(t, s.socket).call("PUT", lockPath("k"), `{"bind":"ttl","request_id":"`+requestID+` "}`).want(400, "invalid_request")
	dial(t, s.socket).call("DELETE", lockPath("k")+"?force=true", "", "Lock-Session: "+id).want(403, "forbidden")
	dial(t, s.socket).call("DELETE", lockPath("k")+"?token=99", "", "Lock-Session: "+id).want(409, "not_holder")
	header, body := "Lock-Session: "+id+"\r\n", `{"data":"`+data+`"}`
	for _, request := range []string{
		"PUT\r\n" + header + "\r\n" + body,
		"PUT /v1/locks/k\r\nHost: x\r\n" + header + "\r\n" + body,
		"PUT /v1/locks/k HTTP/x\r\nHost: x\r\n" + header + "\r\n" + body,
		"PUT /v1/sessions/" + id + "\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
		"PUT " + id + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nLock-Session: " + id + "\x01\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nLock-Session : " + id + "\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nLock-Session" + id + "\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: " + id + " x\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nContent-Length: " + id + "\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + id + "\r\n\r\n",
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + id + "\r\n" + body,
		"PUT /v1/locks/k HTTP/1.1\r\nHost: x\r\nTrailer: " + id + "\r\n\r\n",
	} {
		a := dial(t, s.socket)
		if _, err := io.WriteString(a, request); err != nil {
			t.Fatal(err)
		}
		if answer := a.read("PUT", "/v1/locks/{key}"); answer.status != 400 {
			t.Errorf("%q: %d %s", request, answer.status, answer.body)
		}
	}
}

// answerOf returns the body of an answer over TCP with any status.
func answerOf(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// refusing starts a PostgreSQL that refuses every password. It returns its address, and whether it
// received a password.
func refusing(t *testing.T) (address string, told func(password string) bool) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	heard := make(chan string, 1000)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go refuse(c, heard)
		}
	}()
	return ln.Addr().String(), func(password string) bool {
		select {
		case got := <-heard:
			return got == password
		default:
			return false
		}
	}
}

func refuse(c net.Conn, heard chan<- string) {
	defer func() { _ = c.Close() }()
	server := pgproto3.NewBackend(c, c)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return
	}
	_ = server.SetAuthType(pgproto3.AuthTypeCleartextPassword)
	server.Send(&pgproto3.AuthenticationCleartextPassword{})
	_ = server.Flush()
	if said, err := server.Receive(); err == nil {
		if p, ok := said.(*pgproto3.PasswordMessage); ok {
			heard <- p.Password
		}
	}
	server.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: `password authentication failed for user "app"`})
	_ = server.Flush()
}

// TestSecretsOfSidecarsInTrouble: a sidecar cannot work. Apps, the network, the log and the
// commands show the cause, but no secrets.
// Proves: threat admin listener, threat network, threat hostile collector
func TestSecretsOfSidecarsInTrouble(t *testing.T) {
	t.Parallel()
	address, told := refusing(t)
	database := cluster.NewEmptyDatabase(t)
	makeRole(t, database, "powerless", "LOGIN", "CONNECT")
	missing := strings.Replace(cluster.URL("missing"), "postgres@", "app@", 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer collector.Close()
	refused := strings.Replace(collector.URL, "http://", "http://user:"+operators["the password of the collector's URL"]+"@", 1)
	away := "http://user:" + operators["the password of the collector's URL"] + "@127.0.0.1:1"
	for name, trouble := range map[string]struct{ store, collector, says string }{
		"wrong password":  {"postgres://app@" + address + "/db?sslmode=disable", refused, "password authentication failed"},
		"database away":   {"postgres://app@127.0.0.1:1/db?sslmode=disable", away, "connection refused"},
		"no TLS there":    {"postgres://app@" + address + "/db?sslmode=verify-full", refused, "tls"},
		"no database":     {missing, away, "does not exist"},
		"may not migrate": {pgtest.As(database, "powerless"), refused, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			store := withSecrets(t, trouble.store)
			env := secretEnv("OTEL_EXPORTER_OTLP_ENDPOINT="+trouble.collector, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
				"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_METRIC_EXPORT_INTERVAL=200")
			s := launchWith(t, folder(t), options{"STORE_URL": store, "ADMIN_ADDR": "127.0.0.1:0", "STORE_TIMEOUT": "1s"}, env)
			s.await("the reason", func() bool { return strings.Contains(strings.ToLower(s.log.String()), trouble.says) })
			s.await("the collector's failure", func() bool { return len(s.logged("telemetry has a problem")) > 0 })
			a := dial(t, s.socket)
			operators.notIn(t, "the answer to an app", string(a.call("PUT", lockPath("k"), "").want(503, "store_unavailable").body))
			operators.notIn(t, "the answer to an app", string(a.call("GET", "/readyz", "").want(503, "store_unavailable").body))
			_, admin := s.listening()
			ready := answerOf(t, "http://"+admin+"/readyz")
			operators.notIn(t, "the answer to the network", ready)
			if strings.Contains(ready, "app") || strings.Contains(ready, "powerless") {
				t.Errorf("the answer to the network names the database: %s", ready)
			}
			operators.notIn(t, "the figures", answerOf(t, "http://"+admin+"/metrics"))
			for _, command := range [][]string{{"migrate"}, {"health", "--ready"}, {"ls"}} {
				code, out := commandWith(t, append(env, "LOCKSIDECAR_STORE_URL="+store, "LOCKSIDECAR_SOCKET="+s.socket, "LOCKSIDECAR_STORE_TIMEOUT=1s"), command...)
				if code == 0 && command[0] != "ls" {
					t.Errorf("%s: %s", command, out)
				}
				operators.notIn(t, strings.Join(command, " "), out)
			}
			s.stop()
			operators.notIn(t, "the log", s.log.String())
		})
	}
	if !told(operators["the password of the store's URL"]) {
		t.Error("the password was not sent: this does not test the rule")
	}
}

// commandWith runs a command of the binary, and returns its exit code and output.
func commandWith(t *testing.T, env []string, args ...string) (int, string) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(cleanEnv(), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// TestSecretsOfWrongSettings: the error for an invalid value names it, but does not show parts that
// may be secret.
// Proves: threat wrong settings
func TestSecretsOfWrongSettings(t *testing.T) {
	t.Parallel()
	password, query, header := operators["the password of the store's URL"], operators["the query of the store's URL"], operators["a header for the collector"]
	collector := operators["the password of the collector's URL"]
	file := func(content string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const store, otlp = "LOCKSIDECAR_STORE_URL=", "OTEL_EXPORTER_OTLP_"
	traced := []string{store + "memory://", otlp + "ENDPOINT=http://127.0.0.1:1"}
	for _, env := range [][]string{
		{store + "postgres://app:" + password + "@db:port/app"},
		{store + "postgres://app:" + password + "@db/app?connect_timeout=" + query},
		{store + "postgres://db/app?sslrootcert=/nowhere&password=" + password},
		{store + "postgres://db/app?sslmode=require&sslcert=" + file("none") + "&sslkey=" + file(password) + "&sslpassword=" + query},
		{store + "host=db password=" + password},
		{"LOCKSIDECAR_STORE_URL_FILE=" + file("postgres://app:"+password+"@db:port/app")},
		{"LOCKSIDECAR_STORE_URL_FILE=" + file(password)},
		append(slices.Clone(traced), otlp+"HEADERS=authorization=Bearer%zz"+header),
		append(slices.Clone(traced), otlp+"CLIENT_CERTIFICATE="+file("none"), otlp+"CLIENT_KEY="+file(header)),
		{store + "memory://", otlp + "ENDPOINT=ftp://user:" + collector + "@127.0.0.1:1"},
		{store + "memory://", otlp + "ENDPOINT=http://user:" + collector + "@127.0.0.1:port"},
		{store + "memory://", otlp + "ENDPOINT=127.0.0.1:1/v1?token=" + collector},
	} {
		// A value that is accepted would start the sidecar. It would end because its folder cannot
		// be created.
		code, out := commandWith(t, append(secretEnv("LOCKSIDECAR_SOCKET=/proc/none/s.sock"), env...), "serve")
		if code != 78 && code != 73 {
			t.Errorf("%s: code %d: %s", env, code, out)
		}
		operators.notIn(t, strings.Join(env, " "), out)
	}
	good := secretEnv(store+"postgres://app:"+password+"@127.0.0.1:1/db?sslpassword="+query, "LOCKSIDECAR_SOCKET=/proc/none/s.sock")
	for _, args := range [][]string{
		{"--help"}, {"completion", "bash"}, {"ls", "--no-such-flag"}, {"serve"},
	} {
		_, out := commandWith(t, good, args...)
		operators.notIn(t, strings.Join(args, " "), out)
	}
}
