package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A client that leaves a call closes its connection. The sidecar sees that, and takes back a grant whose answer it could not write. So a withdrawal is needed only
// for an answer that was written and not read, which is a moment of some microseconds. A relay makes it longer: it holds answers back. It is a process of its own,
// so that the faults that take the descriptors of the program do not meet it.

// lifeline is kept open until the end of this process. So the relay ends with it.
var lifeline io.WriteCloser //nolint:unused // without this reference it would be closed as garbage

// throughRelay starts a relay to a socket, and returns the socket of the relay, which lives as long as this process.
func throughRelay(socket string) string {
	own := filepath.Join(os.TempDir(), fmt.Sprintf("relay-%d.sock", os.Getpid()))
	cmd := exec.Command(os.Args[0], "relay", socket, own)
	var err error
	lifeline, err = cmd.StdinPipe()
	must(err)
	cmd.Stderr = os.Stderr
	ready, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	_, err = ready.Read(make([]byte, 1))
	must(err)
	return own
}

// relay is the other process.
func relay(socket, own string) {
	listener, err := net.Listen("unix", own)
	must(err)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = os.Remove(own)
		os.Exit(0)
	}()
	_, err = os.Stdout.WriteString("r")
	must(err)
	for {
		client, err := listener.Accept()
		must(err)
		go pass(client, socket)
	}
}

// pass relays a connection. When one end closes it, so does the other, without what is held back.
func pass(client net.Conn, socket string) {
	sidecar, err := net.Dial("unix", socket)
	if err != nil {
		_ = client.Close()
		return
	}
	end := func() { _ = errors.Join(client.Close(), sidecar.Close()) }
	go func() {
		defer end()
		_, _ = io.Copy(sidecar, client)
	}()
	defer end()
	streams := false // what a stream tells must not be late
	for answer := make([]byte, 64<<10); ; {
		n, err := sidecar.Read(answer)
		if err != nil {
			return
		}
		streams = streams || strings.Contains(string(answer[:n]), "text/event-stream")
		if !streams && rand.IntN(4) == 0 {
			time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
		}
		if _, err := client.Write(answer[:n]); err != nil {
			return
		}
	}
}
