// Package await lets tests wait for an event instead of sleeping.
package await

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long a test waits for an event that should come at once.
const Patience = 30 * time.Second

// Receive waits for the next value of a channel.
func Receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(Patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// Silent checks that a channel is empty now.
func Silent[T any](t testing.TB, ch <-chan T, what string) {
	t.Helper()
	select {
	case v := <-ch:
		t.Fatalf("unexpected %s: %v", what, v)
	default:
	}
}

// Until polls for a state that is not reported by a channel.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// Taken waits until the peer of a socket has read all sent bytes.
func Taken(t testing.TB, nc net.Conn) {
	t.Helper()
	raw, err := nc.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	Until(t, "all that was sent is read", func() bool {
		var n int
		var err error
		if broken := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); broken != nil {
			err = broken
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}
