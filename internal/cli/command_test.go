package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

func TestCommandsAgainstASidecar(t *testing.T) {
	in := serve(t, map[string]string{"POD": "web-0"})
	out, err := in.command("acquire", "dir/k", "--ttl", "60s", "--data", `{"by":"test"}`)
	token := strings.TrimSpace(out)
	if err != nil || token == "" {
		t.Fatalf("%q, %v", out, err)
	}
	steps := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"acquire", "dir/k", "--ttl", "60s"}, exitcode.NoLock, "held by pod web-0"},
		{[]string{"acquire", "dir/k", "--ttl", "60s", "--wait", "5ms"}, exitcode.NoLock, "queue position: 1"},
		{[]string{"get", "dir/k"}, exitcode.OK, `data      {"by":"test"}`},
		{[]string{"get", "dir/k", "--json"}, exitcode.OK, `"pod":"web-0"`},
		{[]string{"get", "free"}, exitcode.OK, "state     free\n"},
		{[]string{"ls"}, exitcode.OK, "dir/k"},
		{[]string{"ls", "-o", "json", "--scope", "all", "--prefix", "dir/"}, exitcode.OK, `{"locks":[{"key":"dir/k"`},
		{[]string{"ls", "--json", "--limit", "1"}, exitcode.OK, `,"next_cursor":null}`},
		{[]string{"ls", "--json", "--prefix", "a b+c"}, exitcode.OK, `{"locks":[],"next_cursor":null}`},
		{[]string{"ls", "--scope", "moon"}, exitcode.Usage, "scope"},
		{[]string{"release", "dir/k", "--token", "1"}, exitcode.Refused, "unknown_token"},
		{[]string{"release", "dir/k", "--token", token}, exitcode.OK, "released dir/k, held for "},
		{[]string{"release", "dir/k", "--token", token}, exitcode.Refused, "released"},
		{[]string{"acquire", "k", "--ttl", "1ms"}, exitcode.Usage, "500"},
		{[]string{"acquire", "k", "--ttl", "1s", "--request-id", "x"}, exitcode.Usage, "request_id"},
		{[]string{"acquire", "k", "--ttl", "60s", "--request-id", requestID}, exitcode.OK, ""},
		{[]string{"acquire", "k", "--ttl", "60s", "--request-id", requestID}, exitcode.OK, ""},
		{[]string{"release", "k", "--request-id", requestID}, exitcode.OK, "released k, held for "},
		{[]string{"release", "k", "--request-id", requestID}, exitcode.OK, "nothing is held"},
		{[]string{"release", "k", "--request-id", requestID, "--json"}, exitcode.OK, `"released":false`},
		{[]string{"release", "k", "--request-id", "x"}, exitcode.Usage, "request_id"},
		{[]string{"release", "k", "--request-id", requestID, "--token", "1"}, exitcode.Usage, "cannot be combined"},
		{[]string{"acquire", "..", "--ttl", "60s"}, exitcode.OK, ""},
		{[]string{"get", ".."}, exitcode.OK, "state     held"},
		{[]string{"health"}, exitcode.OK, "healthy\n"},
	}
	for _, step := range steps {
		out, err := in.command(step.args...)
		if err != nil {
			out += err.Error()
		}
		if exitcode.Of(err) != step.code || !strings.Contains(out, step.says) {
			t.Errorf("%q: code %d, %s; want %d, %q", step.args, exitcode.Of(err), out, step.code, step.says)
		}
	}
}

// The command asks the store, as `ls` does: the sidecar may not have heard yet that a lock of
// its own is asked to stop, or that other pods wait for it.
func TestGetAsksTheStore(t *testing.T) {
	f := newFakeSidecar(t)
	if _, err := command("--socket", f.socket, "get", "k"); err == nil || len(f.caching) != 1 || f.caching[0] != "no-cache" {
		t.Errorf("Cache-Control %q; %v", f.caching, err)
	}
}

// Locks that are in the way, of this sidecar and of an app's session.
func TestStopAndForce(t *testing.T) {
	in := serve(t, map[string]string{"ALLOW_FORCE": "true"})
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("dir/mine")
	steps := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"stop", "free"}, exitcode.Refused, "not held"},
		{[]string{"release", "free", "--force"}, exitcode.Refused, "not held"},
		{[]string{"stop", "dir/mine", "--reason", "a release\nof the app"}, exitcode.Usage, "reason"},
		{[]string{"stop", "dir/mine", "--reason", strings.Repeat("r", 256)}, exitcode.Usage, "255"},
		{[]string{"stop", "dir/mine", "--reason", "a release"}, exitcode.OK, "asked the holder of dir/mine to stop\n"},
		{[]string{"get", "dir/mine"}, exitcode.OK, "stopping  a release (asked at "},
		{[]string{"release", "dir/mine", "--force", "--token", "1"}, exitcode.Refused, "not held under token 1"},
		{[]string{"release", "dir/mine", "--force"}, exitcode.OK, "broke dir/mine, held for "},
		{[]string{"get", "dir/mine"}, exitcode.OK, "free"},
		{[]string{"acquire", "ttl", "--ttl", "1h"}, exitcode.OK, ""},
		{[]string{"stop", "ttl"}, exitcode.OK, "asked"},
		{[]string{"get", "ttl"}, exitcode.OK, "stopping  no reason given"},
		{[]string{"release", "ttl", "--force"}, exitcode.OK, "broke ttl"},
	}
	for _, step := range steps {
		out, err := in.command(step.args...)
		if err != nil {
			out += err.Error()
		}
		if exitcode.Of(err) != step.code || !strings.Contains(out, step.says) {
			t.Errorf("%q: code %d, %s; want %d, %q", step.args, exitcode.Of(err), out, step.code, step.says)
		}
	}
}

func TestForceIsNotAllowed(t *testing.T) {
	in := serve(t, nil)
	if _, err := in.command("release", "k", "--force"); exitcode.Of(err) != exitcode.Refused || !strings.Contains(err.Error(), "ALLOW_FORCE") {
		t.Error(err)
	}
}

func TestListReadsAllPages(t *testing.T) {
	in := serve(t, nil)
	app := sidecartest.Dial(t, in.Socket)
	for i := range client.PageSize + 5 {
		app.Acquire(fmt.Sprintf("k:%05d", i))
	}
	out, err := in.command("ls")
	if lines := strings.Count(out, "\n"); err != nil || lines != client.PageSize+6 {
		t.Errorf("%d lines, %v", lines, err)
	}
	out, err = in.command("ls", "--limit", "1001")
	if lines := strings.Count(out, "\n"); err != nil || lines != 1002 || !strings.Contains(out, "k:01000") {
		t.Errorf("%d lines, %v", lines, err)
	}
}

// A lock of another pod is what blocks somebody, so it is listed without a flag.
func TestListIsOfAllPods(t *testing.T) {
	f := newFakeSidecar(t)
	theirs := listedLock("job:1", "web-1", "s", time.Minute, 9*time.Second, 0)
	five := 5
	forTime := client.Lock{Key: "job:2", State: "held", LockMode: client.LockMode{Mode: client.ModeShared, Limit: &five, HoldersCount: 3}, Holder: &client.Holder{Pod: "web-1", HeldMS: 1000, ExpiresInMS: 42_000}}
	f.holds(theirs, forTime)
	out, err := command("--socket", f.socket, "ls")
	if err != nil || f.asked()[0].Get("scope") != "all" {
		t.Fatalf("%v, asked %v", err, f.asked())
	}
	// A lock that its holder's sidecar renews has no end to wait for.
	const want = "KEY    MODE        POD    SESSION  OWNER  BIND     HELD  EXPIRES  WAITING  STOPPING\n" +
		"job:1  exclusive   web-1  s        -      session  1m0s  renewed  0        -\n" +
		"job:2  shared 3/5  web-1  -        -      ttl      1s    in 42s   0        -\n"
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// --json is what the API answers: also that there are more locks, and no sign is escaped that
// the API does not escape.
func TestListAsJSON(t *testing.T) {
	f := newFakeSidecar(t)
	f.holds(client.Lock{Key: "a<b"}, client.Lock{Key: "c"})
	for limit, wantKeys := range map[string][]string{"1": {"a<b"}, "0": {"a<b", "c"}} {
		out, err := command("--socket", f.socket, "ls", "--json", "--limit", limit)
		var page struct {
			Locks []struct {
				Key string `json:"key"`
			} `json:"locks"`
			Next string `json:"next_cursor"`
		}
		if err != nil || json.Unmarshal([]byte(out), &page) != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var keys []string
		for _, lock := range page.Locks {
			keys = append(keys, lock.Key)
		}
		if !slices.Equal(keys, wantKeys) || !strings.Contains(out, "a<b") || (page.Next != "") != (limit == "1") {
			t.Errorf("--limit %s: %s", limit, out)
		}
	}
}

// The table shows each lock, and --json is one document.
func TestListShowsWhoHoldsWhat(t *testing.T) {
	in := serve(t, map[string]string{"POD": "web-0"})
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("job:1")
	app.Acquire("other:1")
	if _, err := in.command("stop", "job:1", "--reason", "a release"); err != nil {
		t.Fatal(err)
	}
	out, err := in.command("ls", "--type", "job")
	if err != nil || strings.Count(out, "\n") != 2 {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, part := range []string{"KEY ", "SESSION", "OWNER", "BIND", "renewed", "WAITING", "STOPPING", "job:1", "web-0", "a release (asked at "} {
		if !strings.Contains(out, part) {
			t.Errorf("the table does not show %q:\n%s", part, out)
		}
	}
	for _, args := range [][]string{
		{"ls", "--json"}, {"get", "job:1", "--json"}, {"stop", "job:1", "--json"},
	} {
		out, err := in.command(args...)
		var document map[string]any
		if err != nil || json.Unmarshal([]byte(out), &document) != nil {
			t.Errorf("%q: %v, %s", args, err, out)
		}
		// The command also prints members that this version does not know.
		if args[0] != "stop" && !strings.Contains(out, `"mine":false`) {
			t.Errorf("%q: %s", args, out)
		}
	}
}

func TestReleaseAnswersJSON(t *testing.T) {
	in := serve(t, map[string]string{"ALLOW_FORCE": "true"})
	if _, err := in.command("acquire", "k", "--ttl", "1h"); err != nil {
		t.Fatal(err)
	}
	out, err := in.command("release", "k", "--force", "--json")
	var document struct {
		Released bool `json:"released"`
	}
	if err != nil || json.Unmarshal([]byte(out), &document) != nil || !document.Released {
		t.Errorf("%v, %s", err, out)
	}
}

// TestMarkingAnotherStoreAsNew: only Redis has a quiet time that the command can spare.
func TestMarkingAnotherStoreAsNew(t *testing.T) {
	for _, url := range []string{"memory://", "etcd://etcd:2379"} {
		var out bytes.Buffer
		err := execute(&app{source: config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": url})}, []string{"migrate", "--new"}, &out, &out)
		if exitcode.Of(err) != exitcode.Config || !strings.Contains(err.Error(), "only for Redis") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestUsage(t *testing.T) {
	tests := []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, exitcode.OK, "\nExit codes:\n  0   done\n"},
		{[]string{"--help"}, exitcode.OK, "\nCommands:\n  acquire     Acquire a lock"},
		{[]string{"help", "ls"}, exitcode.OK, "List held locks, ordered by key\n\nExamples:\n  locksidecar ls "},
		{[]string{"events", "--help"}, exitcode.OK, "\nUsage:\n  locksidecar events KEY [flags]\n\nPrint what happens"},
		{[]string{"top", "--help"}, exitcode.OK, "\nFlags of all commands:\n      --socket "},
		{[]string{"top", "--help"}, exitcode.OK, "\nExit codes: 0 done, 1 an unexpected error"},
		{[]string{"release", "--help"}, exitcode.OK, "--request-id UUID "},
		{[]string{"acquire", "--help"}, exitcode.OK, "fencing"},
		{[]string{"acquire", "--help"}, exitcode.OK, "tokens can be guessed"},
		{[]string{"release", "--help"}, exitcode.OK, "can be guessed"},
		{[]string{"serve", "--help"}, exitcode.OK, "  LOCKSIDECAR_DRAIN_TIMEOUT             25s\n"},
		{[]string{"version"}, exitcode.OK, "API v1"},
		{[]string{"--version"}, exitcode.OK, "API v1"},
		{nil, exitcode.Usage, "no command given: `locksidecar serve`"},
		{[]string{"releas"}, exitcode.Usage, "`release`"},
		{[]string{"serve", "x"}, exitcode.Usage, "usage: locksidecar serve"},
		{[]string{"get"}, exitcode.Usage, "get KEY"},
		{[]string{"get"}, exitcode.Usage, "no argument given; usage"},
		{[]string{"serve", "x"}, exitcode.Usage, `1 argument given ("x"); usage`},
		{[]string{"acquire", "k", "--ttl", "1s", "--wait", "5"}, exitcode.Usage, `2 arguments given (["k" "5"]); usage`},
		{[]string{"get", "k", "--colour"}, exitcode.Usage, "--help"},
		{[]string{"get", "k", "-o", "wide"}, exitcode.Usage, `"wide" for "-o, --output" flag: allowed: text, json`},
		{[]string{"ls", "-o", "yaml"}, exitcode.Usage, `"yaml" for "-o, --output" flag: allowed: text, wide, json`},
		{[]string{"ls", "--watch", "--limit", "1"}, exitcode.Usage, "--watch and --limit do not go together"},
		{[]string{"ls", "--interval", "1s"}, exitcode.Usage, "--interval is only for --watch"},
		{[]string{"ls", "--watch", "--interval", "1ms"}, exitcode.Usage, "allowed: 100ms or more"},
		{[]string{"events"}, exitcode.Usage, "events KEY"},
		{[]string{"events", "k", "--until", "gone"}, exitcode.Usage, `--until is "gone"; allowed: acquired, released, expired, stopping`},
		{[]string{"events", "k", "--count", "-1"}, exitcode.Usage, "--count is -1; allowed: 0 or more"},
		{[]string{"--socket", "/no/such/socket", "events", "k"}, exitcode.Unavailable, "no sidecar listens"},
		{[]string{"ls", "--limit", "-1"}, exitcode.Usage, "--limit"},
		{[]string{"acquire", "k"}, exitcode.Usage, "--ttl is missing"},
		{[]string{"acquire", "k", "--ttl", "soon"}, exitcode.Usage, "soon"},
		{[]string{"acquire", "k", "--ttl", "1500us"}, exitcode.Usage, "whole milliseconds"},
		{[]string{"acquire", "k", "--ttl", "1s", "--wait=never"}, exitcode.Usage, "--wait"},
		{[]string{"acquire", "k", "--ttl", "1s", "--wait", "-1s"}, exitcode.Usage, "--wait"},
		{[]string{"acquire", "k", "--ttl", "1s", "--data", "text"}, exitcode.Usage, "quotes"},
		{[]string{"release", "k"}, exitcode.Usage, "--token"},
		{[]string{"release", "k", "--token", "0"}, exitcode.Usage, "--token"},
		{[]string{"release", "k", "--token", "x"}, exitcode.Usage, `"x" for "--token" flag: allowed: a whole number`},
		{[]string{"ls", "--limit", "x"}, exitcode.Usage, `"x" for "--limit" flag: allowed: a whole number`},
		{[]string{"get", "k", "--json=maybe"}, exitcode.Usage, `"maybe" for "--json" flag: allowed: true or false`},
		{[]string{"acquire", "k", "--shared=maybe"}, exitcode.Usage, `"--shared" flag: allowed: true or false`},
		{[]string{"run", "k", "--grace", "5", "--", "true"}, exitcode.Usage, `"5" for "--grace" flag: allowed: a duration, such as 30s or 500ms (the unit is missing, as in 5s or 5ms)`},
		{[]string{"acquire", "k", "--ttl=15"}, exitcode.Usage, "(the unit is missing, as in 15s or 15ms)"},
		{[]string{"acquire", "k", "--ttl=1s", "--wait=5"}, exitcode.Usage, "(the unit is missing, as in 5s or 5ms)"},
		{[]string{"migrate", "--wait=5"}, exitcode.Usage, "(the unit is missing, as in 5s or 5ms)"},
		{[]string{"health", "--wait", "x"}, exitcode.Usage, `"x" for "--wait" flag: allowed: a duration, such as 30s`},
		{[]string{"release", "k", "--token", "0", "--force"}, exitcode.Usage, "--token"},
		{[]string{"release", "k", "--force=maybe"}, exitcode.Usage, "force"},
		{[]string{"release", "--help"}, exitcode.OK, "LOCKSIDECAR_ALLOW_FORCE"},
		{[]string{"stop"}, exitcode.Usage, "stop KEY"},
		{[]string{"stop", "k", "--reason"}, exitcode.Usage, "--reason"},
		{[]string{"stop", "--help"}, exitcode.OK, "exit code is 77"},
		{[]string{"run", "--help"}, exitcode.OK, "SIGKILL if it has not ended after --grace\n(5s by default)"},
		{[]string{"run", "--help"}, exitcode.OK, "\n  75   the lock is held by others"},
		{[]string{"run", "k"}, exitcode.Usage, "then --"},
		{[]string{"run", "k", "--limit", "0", "--", "true"}, exitcode.Usage, "allowed: 1 to 1000"},
		{[]string{"acquire", "k", "--limit", "1001"}, exitcode.Usage, "allowed: 1 to 1000"},
		{[]string{"acquire", "k", "--shared=maybe"}, exitcode.Usage, "shared"},
		{[]string{"waiters", "k", "--prefix", "k"}, exitcode.Usage, "do not go together"},
		{[]string{"waiters", "k", "l"}, exitcode.Usage, "usage: locksidecar waiters"},
		{[]string{"waiters", "--limit", "-1"}, exitcode.Usage, "--limit"},
		{[]string{"deadlocks", "k"}, exitcode.Usage, "usage: locksidecar deadlocks"},
		{[]string{"deadlocks", "--help"}, exitcode.OK, "exit code is 1 if there is a circle"},
		{[]string{"run", "k", "true"}, exitcode.Usage, "then --"},
		{[]string{"run", "k", "--"}, exitcode.Usage, "then --"},
		{[]string{"run", "--", "true"}, exitcode.Usage, "then --"},
		{[]string{"run", "k", "l", "--", "true"}, exitcode.Usage, "then --"},
		{[]string{"run", "k", "--wait=never", "--", "true"}, exitcode.Usage, "--wait"},
		{[]string{"run", "k", "--ttl", "1500us", "--", "true"}, exitcode.Usage, "--ttl"},
		{[]string{"run", "k", "--data", "text", "--", "true"}, exitcode.Usage, "quotes"},
		{[]string{"run", "k", "--grace", "-1s", "--", "true"}, exitcode.Usage, "--grace"},
		{[]string{"run", "k", "--on-stop", "FOO", "--", "true"}, exitcode.Usage, "TERM"},
		{[]string{"run", "k", "--on-stop", "0", "--", "true"}, exitcode.Usage, "TERM"},
		{[]string{"run", "k", "--", "no-such-command"}, exitNoCommand, "not found: no-such-command"},
		{[]string{"run", "k", "--", "/"}, exitCannotRun, "cannot be executed"},
		{[]string{"--socket", "/no/such/socket", "run", "k", "--", "true"}, exitcode.Unavailable, "locksidecar serve"},
		{[]string{"completion", "bash"}, exitcode.OK, "__start_locksidecar"},
		{[]string{"completion", "zsh"}, exitcode.OK, "#compdef locksidecar"},
		{[]string{"completion", "tcsh"}, exitcode.Usage, `unknown command "tcsh"`},
		{[]string{"completion"}, exitcode.Usage, "bash, zsh"},
		{[]string{"run", "k", "--ttl=0", "--", "true"}, exitcode.Usage, "allowed: from 500ms to 24h"},
		{[]string{"acquire", "k", "--ttl", "0s"}, exitcode.Usage, "allowed: from 500ms to 24h"},
		{[]string{"run", "k", "ls", "-l"}, exitcode.Usage, "put -- before CMD"},
		{[]string{"run", "k", "ls", "here"}, exitcode.Usage, "for instance: locksidecar run k -- ls here"},
		{[]string{"--socket", "/" + strings.Repeat("s", 107), "get", "k"}, exitcode.Usage, "has 108 bytes; allowed: up to 107"},
		{[]string{"--socket", "/etc/passwd", "get", "k"}, exitcode.Unavailable, "/etc/passwd is not a socket"},
		{[]string{"--socket", "/etc", "get", "k"}, exitcode.Unavailable, "/etc is not a socket"},
		{[]string{"completion", "fish"}, exitcode.OK, "complete -c locksidecar"},
		{[]string{"migrate"}, exitcode.Config, "no store is named"},
		{[]string{"migrate", "--new"}, exitcode.Config, "no store is named: set LOCKSIDECAR_STORE_URL to the URL of the new Redis"},
		{[]string{"migrate", "--new", "--from", "redis://h"}, exitcode.Usage, "--new is not for"},
		{[]string{"--socket", "/no/such/socket", "get", "k"}, exitcode.Unavailable, "locksidecar serve"},
	}
	for _, test := range tests {
		out, err := command(test.args...)
		if err != nil {
			out += err.Error()
		}
		if exitcode.Of(err) != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%q: code %d, %s; want %d, %q", test.args, exitcode.Of(err), out, test.code, test.says)
		}
	}
}

func TestConfigurationIsReported(t *testing.T) {
	source := config.FromMap(map[string]string{"LOCKSIDECAR_TTL": "x", "LOCKSIDECAR_POSTGRES_LISTEN": "y"})
	for _, args := range [][]string{{"serve"}, {"migrate"}} {
		err := execute(&app{source: source}, args, io.Discard, io.Discard)
		if exitcode.Of(err) != exitcode.Config || !strings.Contains(err.Error(), "LOCKSIDECAR_TTL") || !strings.Contains(err.Error(), "LOCKSIDECAR_POSTGRES_LISTEN") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestClientsReadTheSidecarsVariable(t *testing.T) {
	source := config.FromMap(map[string]string{"LOCKSIDECAR_SOCKET": "/no/such/variable"})
	err := execute(&app{source: source}, []string{"health"}, io.Discard, io.Discard)
	if exitcode.Of(err) != exitcode.Unavailable || !strings.Contains(err.Error(), "/no/such/variable") {
		t.Errorf("got %v", err)
	}
}

// The file at the path is no sidecar's socket, or its server hangs up.
func TestSocketsThatAreNone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := command("--socket", file, "health"); exitcode.Of(err) != exitcode.Unavailable {
		t.Errorf("a file: %v", err)
	}
	answers := map[string]string{
		"hangs up":      "",
		"other program": "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope",
		"not JSON":      "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope",
	}
	for name, answer := range answers {
		socket := answering(t, answer)
		_, err := command("--socket", socket, "get", "k")
		if err == nil || !strings.Contains(err.Error(), "sidecar") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// answering is a server that says one thing only.
func answering(t *testing.T, answer string) string {
	t.Helper()
	socket := sidecartest.Socket(t)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}()
	return socket
}

func TestExitCodesOfTheAPI(t *testing.T) {
	for code, want := range map[string]int{
		"held": 75, "wait_timeout": 75,
		"store_unavailable": 69, "draining": 69, "limit": 69, "request_timeout": 69, "session_ended": 69,
		"limit_mismatch": 2, "not_holder": 77, "lock_lost": 77, "not_held": 77, "forbidden": 77,
		"invalid_request": 2, "too_large": 2, "head_too_large": 2,
		"internal": 1, "not_found": 1, "of_the_future": 1,
	} {
		if got := exitcode.Of(fmt.Errorf("wrapped: %w", &client.ProblemError{Code: code})); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
}

func TestMigrateCodes(t *testing.T) {
	for state, want := range map[string]int{
		"28P01": 78, "3D000": 78, "42501": 78, "57P03": 69, "53300": 69, "08006": 69, "42601": 1, "": 1,
	} {
		if got := migrateCode(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: state})); got != want {
			t.Errorf("%s: %d, want %d", state, got, want)
		}
	}
	source := config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": "postgres://u:secret@127.0.0.1:1/d"})
	err := execute(&app{source: source}, []string{"migrate"}, io.Discard, io.Discard)
	if exitcode.Of(err) != exitcode.Unavailable || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestJoinWait(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"acquire k --wait 30s --ttl 1s", "acquire k --wait=30s --ttl 1s"},
		{"acquire --wait k", "acquire --wait k"},
		{"acquire k --wait", "acquire k --wait"},
		{"acquire k --wait --ttl 1s", "acquire k --wait --ttl 1s"},
		{"run k -- sleep --wait 1s", "run k -- sleep --wait 1s"},
		{"acquire k --wait=2s", "acquire k --wait=2s"},
	} {
		if got := joinWait(strings.Fields(test.in)); !slices.Equal(got, strings.Fields(test.want)) {
			t.Errorf("%s: %q", test.in, got)
		}
	}
}

func TestWaitMilliseconds(t *testing.T) {
	for in, want := range map[string]int64{"": 0, waitForever: -1, "0s": 0, "1m": 60_000} {
		var body acquireBody
		cmd := &cobra.Command{}
		body.addFlags(cmd)
		if err := cmd.Flags().Set("wait", in); err != nil || body.WaitMS != want {
			t.Errorf("%q: %d, %v", in, body.WaitMS, err)
		}
	}
}
