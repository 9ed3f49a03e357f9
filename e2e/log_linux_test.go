package e2e

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fullPipe returns a full pipe, which blocks writers until it is read.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	size, err := unix.FcntlInt(writer.Fd(), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString(strings.Repeat("\n", size)); err != nil {
		t.Fatal(err)
	}
	return reader, writer
}

// TestLogReaderHangs: the log is not read from the first line on. Locks are still granted and
// renewed. When the log is read again, it reports the number of missing lines.
// Proves: threat flood
func TestLogReaderHangs(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	unread, stderr := fullPipe(t)
	s := launchTo(t, folder(t), o.with(options{"RENEW_INTERVAL": "500ms"}), nil, stderr)
	s.await("ready", func() bool { return s.tryReady() })
	a := dial(t, s.socket)
	token := a.acquire("k", "")
	long := strings.Repeat("\u2028", 170) // six bytes of JSON for each three
	for range 100 {
		a.call("DELETE", lockPath(long)+"?token=12345", "").want(409, "not_holder")
		a.call("PUT", lockPath(long), `{"ttl_ms":"long"}`).want(400, "invalid_request")
	}
	const renewed = "FROM locksidecar.leases l JOIN locksidecar.locks k ON k.lease_id = l.id WHERE l.expires_at > k.acquired_at + l.ttl + interval '2 seconds'"
	s.await("renewals", func() bool { return rows(t, url, "SELECT "+renewed) == 1 })
	a.call("PATCH", lockPath("k"), fmt.Sprintf(`{"token":%d}`, token)).want(200, "")
	a.release("k", token)

	go func() { _, _ = io.Copy(s.log, unread) }()
	lost := func() []string { return s.logged("log lines lost", `"count":`) }
	s.await("the log line with the number of lost lines", func() bool { return len(lost()) == 1 })
	// The next message is a new one, because repeated messages may be left out.
	dropped := dial(t, s.socket)
	dropped.acquire("dropped", "")
	dropped.close()
	s.await("log lines after it", func() bool { return len(s.logged("connection closed while it held locks")) > 0 })
	if v, _ := s.figures().value("locksidecar_log_lines_dropped_total"); v == 0 {
		t.Error("the metric counts no dropped lines")
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, "the last line", func() bool { return len(s.logged(`"msg":"stopped"`)) > 0 })
}

// TestProcessEndsWhileTheLogReaderHangs: a process ends although the reader of its log hangs.
func TestProcessEndsWhileTheLogReaderHangs(t *testing.T) {
	t.Parallel()
	_, stderr := fullPipe(t)
	s := launchTo(t, folder(t), options{"STORE_URL": "memory://"}, nil, stderr)
	s.await("ready", func() bool { return s.tryReady() })
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code := launchTo(t, folder(t), options{"TTL": "nonsense"}, nil, stderr).wait(); code != 78 {
		t.Errorf("exit code %d with an invalid configuration", code)
	}
}
