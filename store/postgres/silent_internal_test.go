package postgres

import (
	"crypto/tls"
	"net"
	"testing"
)

// Proves: promise 4, trap failover
func TestSilent(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"plain": func(c net.Conn) net.Conn { return c },
		"TLS":   func(c net.Conn) net.Conn { return tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here, there := pair(t)
			conn := wrap(here)
			if !silent(conn) {
				t.Error("nothing has arrived, want silent")
			}
			if _, err := there.Write([]byte("N")); err != nil {
				t.Fatal(err)
			}
			for silent(conn) { // until it arrives
			}
			if _, err := here.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if !silent(conn) {
				t.Error("what arrived was read, want silent")
			}
			if err := there.Close(); err != nil {
				t.Fatal(err)
			}
			for silent(conn) {
			}
		})
	}
}

// After a slow write, pgx may leave a reader that waits until the next answer.
func TestSilentDoesNotWaitForAReader(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	raw, err := here.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	reading, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		first := true
		_ = raw.Read(func(uintptr) bool { // holds what a reader holds
			if first {
				first = false
				close(reading)
				return false
			}
			return true
		})
	}()
	<-reading
	if !silent(here) {
		t.Error("nothing has arrived, want silent")
	}
	if err := there.Close(); err != nil {
		t.Fatal(err)
	}
	<-over
}

func pair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if here, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = there.Close() })
	return here, there
}
