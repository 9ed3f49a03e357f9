package node

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// deploy/console.yaml works as it is: through a port-forward, the console shows the locks of other pods. Its sidecar has the role
// that may only read, and so grants nothing.
func TestConsole(t *testing.T) {
	ns := namespace(t, "console")
	inside := func(args ...string) {
		t.Helper()
		if out, err := the.inside(args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	// The superuser of this server is called locksidecar, so the schema is the migrator's only in another database.
	as := func(role string) string {
		return strings.NewReplacer("//locksidecar:", "//"+role+":", "/postgres?", "/console?").Replace(storeURL)
	}
	psql := func(url string, args ...string) {
		t.Helper()
		inside(append([]string{"psql", "--no-psqlrc", "--quiet", "-v", "ON_ERROR_STOP=1", url}, args...)...)
	}
	owner, roles := as("locksidecar"), abs(root+"/deploy/roles.sql")
	psql(storeURL, "-c", "CREATE DATABASE console")
	psql(owner, "-f", roles)
	psql(owner, "-c", "ALTER ROLE locksidecar_migrator PASSWORD 'secret'", "-c", "ALTER ROLE locksidecar_reader PASSWORD 'secret'")
	inside("env", "LOCKSIDECAR_STORE_URL="+as("locksidecar_migrator"), abs(root+"/bin/locksidecar"), "migrate")
	psql(owner, "-f", roles)

	kubectl(t, "-n", ns, "delete", "secret", "locksidecar")
	kubectl(t, "-n", ns, "create", "secret", "generic", "locksidecar", "--from-literal=store-url="+owner)
	kubectl(t, "-n", ns, "create", "secret", "generic", "locksidecar-reader", "--from-literal=store-url="+as("locksidecar_reader"))
	apply(t, ns, manifest(t, "console.yaml"))
	apply(t, ns, holder(t, "holder", "seen", false))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/holder", "--timeout=60s")
	logOf(t, ns, "holder", "app").next("granted")
	kubectl(t, "-n", ns, "wait", "--for=condition=Available", "deploy/locksidecar-console", "--timeout=60s")

	forward := the.kubectl("-n", ns, "port-forward", "deploy/locksidecar-console", "15625")
	forward.Stdout, forward.Stderr = os.Stderr, os.Stderr
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = forward.Process.Kill(), forward.Wait() }()
	page := func(path string) (text string) {
		t.Helper()
		if err := the.until("the page "+path, func() error {
			out, err := the.inside("curl", "-sSf", "http://127.0.0.1:15625"+path).Output()
			text = string(out)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, path := range []string{"/", "/key?key=seen"} {
		if text := page(path); !strings.Contains(text, "holder") || !strings.Contains(text, "seen") {
			t.Errorf("%s: %s", path, text)
		}
	}
	out, err := the.kubectl("-n", ns, "exec", "deploy/locksidecar-console", "-c", "locksidecar", "--", "/locksidecar", "acquire", "mine", "--ttl", "30s").CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed || !strings.Contains(string(out), "may only read") {
		t.Errorf("the console's sidecar grants: %v: %s", err, out)
	}
}
