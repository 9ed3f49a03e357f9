package image

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// twoPods are pods with a sidecar and an app each, on one database.
func twoPods(t *testing.T, env ...string) (one *pod, sidecar *process, here, there *app) {
	t.Helper()
	database := cluster.NewDatabase(t)
	one = newPod(t, database, emptyDir{}, env...)
	two := newPod(t, database, emptyDir{})
	sidecar = one.sidecar()
	two.sidecar()
	here, there = one.app(), two.app()
	return one, sidecar, here, there
}

// TestNativeStop: the kubelet stops the app first, which works on as before; the sidecar
// comes after it, and has nothing to wait for.
func TestNativeStop(t *testing.T) {
	_, sidecar, here, there := twoPods(t)
	token := here.acquire("k")
	here.signal(syscall.SIGTERM)
	if heard := here.hear(); heard.Signal != "SIGTERM" {
		t.Fatalf("the app says %+v", heard)
	}
	here.renew("k", token).want(t, 200, "granted")
	here.release("other", here.acquire("other"))
	there.try("k").want(t, 423, "held")

	there.waitFor("k")
	here.end()
	there.hear().token(t) // free at once: the lock's TTL is an hour
	ends(t, sidecar)
}

// TestPlainStop: without native sidecars, all containers get SIGTERM at the same time. Held locks stay
// held until the app has finished; new ones are refused with a reason.
func TestPlainStop(t *testing.T) {
	_, sidecar, here, there := twoPods(t)
	token := here.acquire("k")
	sidecar.signal(syscall.SIGTERM)
	here.signal(syscall.SIGTERM)
	if heard := here.hear(); heard.Signal != "SIGTERM" {
		t.Fatalf("the app says %+v", heard)
	}
	sidecar.await(`"msg":"stopping"`)
	for began := time.Now(); here.do("GET", "/readyz").Status != 503; {
		if time.Since(began) > patience {
			t.Fatal("the sidecar stops, and says that it is ready")
		}
	}
	here.try("other").want(t, 503, "draining")
	here.renew("k", token).want(t, 200, "granted")
	there.try("k").want(t, 423, "held")

	there.waitFor("k")
	here.release("k", token)
	there.hear().token(t)
	if code := sidecar.code(); code != 0 {
		t.Errorf("the sidecar ended with code %d", code)
	}
}

// TestPlainStopOfAnAppThatStays: the sidecar waits for DRAIN_TIMEOUT, not longer, and leaves
// nothing locked.
func TestPlainStopOfAnAppThatStays(t *testing.T) {
	_, sidecar, here, there := twoPods(t, "LOCKSIDECAR_DRAIN_TIMEOUT=1s")
	here.acquire("k")
	there.waitFor("k")
	began := time.Now()
	sidecar.signal(syscall.SIGTERM)
	there.hear().token(t)
	if took := time.Since(began); took < time.Second {
		t.Errorf("the lock was taken from the app after %s", took)
	}
	if code := sidecar.code(); code != 0 {
		t.Errorf("the sidecar ended with code %d", code)
	}
}

// TestKilledApp: the app is out of memory. Its locks are free, the sidecar stays.
func TestKilledApp(t *testing.T) {
	one, sidecar, here, there := twoPods(t)
	here.acquire("k")
	there.waitFor("k")
	here.signal(syscall.SIGKILL)
	there.hear().token(t)
	again := one.app() // its container is started again
	again.acquire("k2")
	again.end()
	ends(t, sidecar)
}

// TestKilledSidecar: the sidecar is out of memory. Its container comes back in the same
// folder: it replaces the socket, frees what its predecessor held, and the app connects
// again.
func TestKilledSidecar(t *testing.T) {
	one, sidecar, here, there := twoPods(t)
	token := here.acquire("k")
	sidecar.signal(syscall.SIGKILL)
	sidecar.code()
	there.try("k").want(t, 423, "held")
	if left := strings.Join(one.files(), " "); !strings.Contains(left, "locksidecar.sock.instance") {
		t.Fatalf("the folder has %s", left)
	}

	again := one.sidecar()
	there.waitFor("k")
	there.hear().token(t) // the TTL is an hour
	here.renew("k", token).want(t, 409, "not_holder")
	here.acquire("another")
	here.end()
	ends(t, again)
}

// ends stops a sidecar whose app has ended: with 0, and not after the hour that it would give an app.
func ends(t *testing.T, sidecar *process) {
	t.Helper()
	sidecar.signal(syscall.SIGTERM)
	if code := sidecar.code(); code != 0 {
		t.Errorf("the sidecar ended with code %d", code)
	}
}
