package e2e

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

var (
	shellBlocks = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")  //nolint:gocritic // with (?m), ^ may stand in the middle
	sqlBlocks   = regexp.MustCompile("(?ms)^```sql\n(.*?)^```$") //nolint:gocritic // as above
)

// TestRunbook: every command and every statement in docs/runbook.md works as written while a lock is
// held and waited for. The statements run as a role that may only read.
func TestRunbook(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	commands, statements := steps(shellBlocks, string(text), "\n"), steps(sqlBlocks, string(text), ";\n")
	if len(commands) < 10 || len(statements) < 5 {
		t.Fatalf("only %d commands and %d statements were found: the test reads the page wrongly", len(commands), len(statements))
	}
	o, url := onPostgres(t)
	s := start(t, o.with(options{"ALLOW_FORCE": "true"}))
	holder, waiter := dial(t, s.socket), dial(t, s.socket)
	holder.acquire("report:daily", "")
	waiter.send("PUT", lockPath("report:daily"), `{"wait_ms":-1}`)
	s.awaitQueue("report:daily", 1)
	for _, sql := range statements {
		found := rows(t, pgtest.As(url, pgroles.Reader), sql)
		if aboutLocks := strings.Contains(sql, "locksidecar."); aboutLocks && found == 0 {
			t.Errorf("no rows: %s", sql)
		}
	}
	for _, line := range commands {
		args := strings.Fields(line)
		if args[0] != "locksidecar" {
			t.Errorf("not a command of the sidecar: %s", line)
			continue
		}
		cmd := exec.Command("sh", "-c", `"$0" `+strings.TrimPrefix(line, "locksidecar "), binary)
		cmd.Env = append(cleanEnv(), "LOCKSIDECAR_SOCKET="+s.socket)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		// After its break, the lock belongs to the waiter.
		if strings.Contains(line, "top") && !strings.Contains(string(out), "report:daily") {
			t.Errorf("%s does not show the lock:\n%s", line, out)
		}
	}
	waiter.read("PUT", lockPath("report:daily")).granted()
}

// quotedMessages are the log messages on the page: several words in small letters, which are not
// commands.
var quotedMessages = regexp.MustCompile("`((?:[a-z-]+,? ){2,}[a-z-]+)`")

// TestRunbookQuotes: docs/runbook.md quotes messages of the code.
func TestRunbookQuotes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	code := sources(t)
	n := 0
	for _, m := range quotedMessages.FindAllStringSubmatch(string(page), -1) {
		if first, _, _ := strings.Cut(m[1], " "); first == "kubectl" || first == "locksidecar" {
			continue
		}
		if n++; !strings.Contains(code, `"`+m[1]) {
			t.Errorf("no message in the code begins with %q", m[1])
		}
	}
	if n < 5 {
		t.Errorf("only %d messages were found: the test reads the page wrongly", n)
	}
}

// sources returns the code of the sidecar without tests.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"internal/cli", "internal/sidecar", "internal/logging", "proxy", "lease", "batcher", "store/postgres"} {
		err := filepath.WalkDir(filepath.Join("..", dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// steps returns the single commands of all blocks.
func steps(blocks *regexp.Regexp, page, end string) (all []string) {
	for _, block := range blocks.FindAllStringSubmatch(page, -1) {
		for step := range strings.SplitSeq(block[1], end) {
			if step = strings.TrimSpace(step); step != "" {
				all = append(all, step)
			}
		}
	}
	return all
}

// rows returns the number of rows of a statement.
func rows(t *testing.T, url, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	found, err := conn.Query(context.Background(), sql)
	if err != nil {
		t.Errorf("%v: %s", err, sql)
		return 0
	}
	for found.Next() {
		n++
	}
	if err := found.Err(); err != nil {
		t.Errorf("%v: %s", err, sql)
	}
	return n
}
