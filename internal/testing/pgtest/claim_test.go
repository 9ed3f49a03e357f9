package pgtest

import (
	"net"
	"strconv"
	"testing"
)

// A port is given out once, even before its user listens on it. A port with a listener is not given
// out.
func TestAPortIsGivenOnce(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if claim(port) == nil {
		t.Errorf("port %d was given twice", port)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, text, _ := net.SplitHostPort(listener.Addr().String())
	if port, err = strconv.Atoi(text); err != nil || claim(port) == nil {
		t.Errorf("port %d was given although it has a listener: %v", port, err)
	}
}
