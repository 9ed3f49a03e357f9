//go:build network && linux

// Package network tests the API over TCP in real networks: an app and its sidecar are in network namespaces of their own, with a switch between
// them that stops to carry anything. Nothing is closed then, as if a machine had lost its power. It runs as root: `make test-network`.
package network

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

const (
	patience = time.Minute
	// ttl is LOCKSIDECAR_TTL of the sidecar. The others are promises of docs/operate.md.
	ttl         = 2 * time.Second
	releaseTime = ttl + 10*time.Second
	// clientSilence is after what time a client ends a call whose sidecar has vanished.
	clientSilence = 18 * time.Second

	sidecarIP, appIP = "10.213.77.1", "10.213.77.2"
	token            = "0123456789abcdef0123456789abcdef"
	roleVariable     = "NETWORK_TEST_APP"
)

var binary string

// clients are those whose apps are tested. The one for Node needs its folder dist, and that for the JVM its classes and target/classpath.
var clients = flag.String("clients", "go", "the clients of the app: go,node,java")

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		app(role)
		return
	}
	folder, err := os.MkdirTemp("", "network")
	if err == nil {
		binary = filepath.Join(folder, "locksidecar")
		err = command("go", "build", "-tags", "grpcnotrace", "-o", binary, "../../cmd/locksidecar")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// app is the process in the app's namespace. It writes a line for each event, with its time.
func app(role string) {
	say := func(what string, err error) {
		fmt.Printf("%s %d %v\n", what, time.Now().UnixNano(), err)
	}
	// Its leases are longer than the time after which the sidecar gives up a silent app.
	c := locksidecar.New(locksidecar.Config{Reconnect: -1, TTL: time.Minute})
	if role == "waits" {
		if err := c.Connect(context.Background()); err != nil {
			say("failed", err)
			return
		}
		say("waits", nil)
		_, err := c.Acquire(context.Background(), "other")
		say("ended", err)
		return
	}
	lock, err := c.Acquire(context.Background(), "k", locksidecar.Wait(10*time.Second))
	if err != nil {
		say("failed", err)
		return
	}
	say("held", nil)
	<-lock.Context().Done()
	say("lost", context.Cause(lock.Context()))
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// network is two namespaces and a switch between them, in a third.
type network struct {
	t                 *testing.T
	apps, side, wires string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("not run: making network namespaces needs root")
	}
	id := strconv.Itoa(os.Getpid())
	n := &network{t, "lsapp" + id, "lsside" + id, "lswire" + id}
	for _, name := range []string{n.apps, n.side, n.wires} {
		n.ip("netns", "add", name)
		t.Cleanup(func() { _ = command("ip", "netns", "del", name) })
		n.ip("-n", name, "link", "set", "lo", "up")
	}
	n.ip("-n", n.wires, "link", "add", "switch", "type", "bridge")
	n.ip("-n", n.wires, "link", "set", "switch", "up")
	for name, address := range map[string]string{n.apps: appIP, n.side: sidecarIP} {
		port := "p" + address[len(address)-1:]
		n.ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", n.wires)
		n.ip("-n", name, "addr", "add", address+"/24", "dev", "eth0")
		n.ip("-n", name, "link", "set", "eth0", "up")
		n.ip("-n", n.wires, "link", "set", port, "up")
		n.ip("-n", n.wires, "link", "set", port, "master", "switch")
	}
	return n
}

func (n *network) ip(args ...string) {
	n.t.Helper()
	if err := command("ip", args...); err != nil {
		n.t.Fatalf("not run: %v", err)
	}
}

// cut stops all traffic. Both sides still have a link.
func (n *network) cut() time.Time {
	n.t.Helper()
	n.ip("-n", n.wires, "link", "set", "p2", "nomaster")
	return time.Now()
}

// in starts a process in a namespace, which ends with the test.
func (n *network) in(name string, env []string, argv ...string) *exec.Cmd {
	n.t.Helper()
	cmd := exec.Command("ip", append([]string{"netns", "exec", name}, argv...)...)
	cmd.Env = append(os.Environ(), env...)
	n.t.Cleanup(func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill() // ip becomes the process
		}
		_ = cmd.Wait()
	})
	return cmd
}

// sidecar starts the sidecar, and returns its socket.
func (n *network) sidecar(env ...string) (socket string) {
	n.t.Helper()
	socket = filepath.Join(n.t.TempDir(), "s")
	cmd := n.in(n.side, append(env, "LOCKSIDECAR_SOCKET="+socket, "LOCKSIDECAR_STORE_URL=memory://", "LOCKSIDECAR_TTL="+ttl.String(),
		"LOCKSIDECAR_TCP_ADDR="+sidecarIP+":15625", "LOCKSIDECAR_LOG_FORMAT=text"), binary, "serve")
	log, err := cmd.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	ready := make(chan bool, 1)
	go func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			n.t.Log("sidecar:", lines.Text())
			if strings.Contains(lines.Text(), "msg=ready") {
				ready <- true
			}
		}
		close(ready)
	}()
	select {
	case ok := <-ready:
		if !ok {
			n.t.Fatal("the sidecar has ended")
		}
	case <-time.After(patience):
		n.t.Fatal("the sidecar is not ready")
	}
	return socket
}

// event is a line of an app.
type event struct {
	what string
	at   time.Time
	err  string
}

// argv is the command of an app with a client.
func (n *network) argv(client string) []string {
	n.t.Helper()
	switch client {
	case "go":
		return []string{os.Args[0]}
	case "node":
		return []string{"node", "app.mjs"}
	case "java":
		const folder = "../../clients/java/client/target/"
		path, err := os.ReadFile(folder + "classpath")
		if err != nil {
			n.t.Fatalf("not run: %v", err)
		}
		return []string{"java", "-cp", folder + "classes:" + strings.TrimSpace(string(path)), "App.java"}
	}
	n.t.Fatalf("there is no client %q", client)
	return nil
}

func (n *network) app(client, role string, env ...string) <-chan event {
	n.t.Helper()
	cmd := n.in(n.apps, append(env, roleVariable+"="+role), n.argv(client)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	events := make(chan event, 10)
	go func() {
		defer close(events)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			what, rest, _ := strings.Cut(lines.Text(), " ")
			nanos, why, _ := strings.Cut(rest, " ")
			at, _ := strconv.ParseInt(nanos, 10, 64)
			events <- event{what, time.Unix(0, at), why}
		}
	}()
	return events
}

func (n *network) next(events <-chan event, what string) event {
	n.t.Helper()
	select {
	case e := <-events:
		if e.what != what {
			n.t.Fatalf("waited for %q of the app, got %+v", what, e)
		}
		return e
	case <-time.After(patience):
		n.t.Fatalf("waited in vain for %q of the app", what)
		return event{}
	}
}

// An app whose network is cut knows that its lock is lost before anybody else gets it, and the lock is free in the promised time. A call that
// waits ends, too.
// Proves: threat tcp
func TestTheLinkGoesDown(t *testing.T) {
	for client := range strings.SplitSeq(*clients, ",") {
		t.Run(client, func(t *testing.T) { theLinkGoesDown(t, client) })
	}
}

func theLinkGoesDown(t *testing.T, client string) {
	n := newNetwork(t)
	ca := certtest.New(t)
	secret := certtest.Mount(t, ca.IssueFor(sidecarIP, time.Now().Add(time.Hour)))
	write := func(name string, content []byte) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	tokens := write("tokens", []byte(token))
	socket := n.sidecar("LOCKSIDECAR_TCP_TOKEN_FILE="+tokens, "LOCKSIDECAR_TCP_TLS_CERT_FILE="+secret.CertFile(), "LOCKSIDECAR_TCP_TLS_KEY_FILE="+secret.KeyFile())

	here := locksidecar.New(locksidecar.Config{Socket: socket})
	defer func() { _ = here.Close() }()
	other, err := here.Acquire(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Release() }()

	env := []string{"LOCKSIDECAR_URL=https://" + sidecarIP + ":15625", "LOCKSIDECAR_TOKEN_FILE=" + tokens, "LOCKSIDECAR_CA_FILE=" + write("ca", ca.PEM())}
	holder, waiter := n.app(client, "holds", env...), n.app(client, "waits", env...)
	n.next(holder, "held")
	n.next(waiter, "waits")
	await(t, here, "other", 1)
	type grant struct {
		at  time.Time
		err error
	}
	granted := make(chan grant, 1)
	go func() {
		lock, err := here.Acquire(t.Context(), "k")
		granted <- grant{time.Now(), err}
		if err == nil {
			_ = lock.Release()
		}
	}()
	await(t, here, "k", 1)

	cut := n.cut()
	lost := n.next(holder, "lost")
	var next grant
	select {
	case next = <-granted:
	case <-time.After(patience):
		t.Fatal("the lock stays with the app that vanished")
	}
	t.Logf("after the cut: the app knows after %s, the next has the lock after %s", lost.at.Sub(cut), next.at.Sub(cut))
	switch {
	case next.err != nil:
		t.Error(next.err)
	case !lost.at.Before(next.at):
		t.Errorf("two held the lock: the app knew after %s, the next had it after %s", lost.at.Sub(cut), next.at.Sub(cut))
	case next.at.Sub(cut) > releaseTime:
		t.Errorf("the lock was free after %s, promised are %s", next.at.Sub(cut), releaseTime)
	case next.at.Sub(cut) < ttl/2:
		t.Errorf("the lock was free after %s: nobody waited for the app", next.at.Sub(cut))
	}
	if !strings.Contains(lost.err, "lost") {
		t.Errorf("the app was told: %s", lost.err)
	}
	ended := n.next(waiter, "ended")
	t.Logf("the waiting call ended after %s: %s", ended.at.Sub(cut), ended.err)
	if ended.at.Sub(cut) > clientSilence+3*time.Second || ended.err == "<nil>" {
		t.Errorf("the waiting call ended after %s: %s", ended.at.Sub(cut), ended.err)
	}
}

// await waits until so many calls wait for a key.
func await(t *testing.T, c *locksidecar.Client, key string, waiting int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // another process tells nobody
		view, err := c.Get(t.Context(), key)
		if err == nil && view.QueueLength == waiting {
			return
		}
		if time.Now().After(end) || err != nil && !errors.Is(err, locksidecar.ErrUnavailable) {
			t.Fatalf("%s: %+v, %v", key, view, err)
		}
	}
}
