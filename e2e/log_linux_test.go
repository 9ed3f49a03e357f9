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

// fullPipe is a pipe that takes nothing more, until somebody reads it.
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

// TestLogReaderHangs: nobody reads the log, from the first line on. Locks are granted and
// renewed; when it is read again, it says how many lines are missing.
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
	s.await("a line that says how many are lost", func() bool { return len(lost()) == 1 })
	// A message that did not come yet: of those above there were so many that the next may be left out.
	dropped := dial(t, s.socket)
	dropped.acquire("dropped", "")
	dropped.close()
	s.await("lines after it", func() bool { return len(s.logged("connection closed while it held locks")) > 0 })
	if v, _ := s.figures().value("locksidecar_log_lines_dropped_total"); v == 0 {
		t.Error("no lines are counted as dropped")
	}
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, "the last line", func() bool { return len(s.logged(`"msg":"stopped"`)) > 0 })
}

// TestEndsThoughNobodyReadsTheLog: a reader that hangs keeps no process from its end.
func TestEndsThoughNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	_, stderr := fullPipe(t)
	s := launchTo(t, folder(t), options{"STORE_URL": "memory://"}, nil, stderr)
	s.await("ready", func() bool { return s.tryReady() })
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if code := launchTo(t, folder(t), options{"TTL": "nonsense"}, nil, stderr).wait(); code != 78 {
		t.Errorf("exit code %d of a wrong configuration", code)
	}
}
