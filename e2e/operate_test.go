package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// section returns the section of a page of docs with this heading, up to the next heading.
func section(t *testing.T, name, heading string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "# "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", name, heading)
	}
	return regexp.MustCompile("(?ms)^#.*").ReplaceAllString(rest, "")
}

// TestBackup: the commands of docs/operate.md copy a database with its roles to another one.
// There, sidecars continue with greater tokens, and also after restored() was called.
// Proves: rule restore
func TestBackup(t *testing.T) {
	t.Parallel()
	commands := steps(shellBlocks, section(t, "operate.md", "Backup and restore"), "\n")
	if len(commands) != 4 {
		t.Fatalf("%d commands, want those of the backup, the roles, the restore, and the restore of files:\n%s",
			len(commands), strings.Join(commands, "\n"))
	}
	backup, restore, restored := commands[0], commands[1:3], commands[3]
	_, database := onPostgres(t)
	fresh := cluster.NewEmptyDatabase(t)
	at := folder(t) // the dump's folder, with a link to the repository
	deploy, err := filepath.Abs("../deploy")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(deploy, filepath.Join(at, "deploy")); err != nil {
		t.Fatal(err)
	}
	run := func(commands ...string) string {
		t.Helper()
		cmd := exec.Command("bash", "-ec", strings.Join(commands, "\n"))
		cmd.Dir, cmd.Env = at, append(cleanEnv(), "URL="+pgtest.Admin(database), "NEW="+fresh)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(commands, "\n"), err, out)
		}
		return string(out)
	}

	// The locks in the backup are held for longer than the rest of the test takes.
	o := options{"STORE_URL": database, "AUTO_MIGRATE": "false", "TTL": "1h", "FAILOVER": "quick"}
	s := start(t, o)
	a := dial(t, s.socket)
	a.acquire("held", "")
	run(backup)
	last := int64(0)
	for _, key := range keys("later", 20) {
		last = a.acquire(key, "")
	}
	run(restore...)
	a = dial(t, start(t, o.with(options{"STORE_URL": pgtest.As(fresh, pgroles.Sidecar)})).socket)
	a.call("PUT", lockPath("held"), "").want(423, "held")
	if token := a.acquire("later:00000", ""); token <= last {
		t.Errorf("token %d after %d", token, last)
	}

	run(restored)
	a = dial(t, s.socket)
	if token := a.acquire("new", ""); token < last+64_000_000 {
		t.Errorf("token %d after %d: no new history began", token, last)
	}
}

// TestOperateSQL: the statements of docs/operate.md about tables and connections return rows.
func TestOperateSQL(t *testing.T) {
	t.Parallel()
	o, url := onPostgres(t)
	dial(t, start(t, o).socket).acquire("k", "")
	for _, heading := range []string{"How many connections", "How large the tables get", "Vacuum"} {
		text := section(t, "operate.md", heading)
		statements := steps(sqlBlocks, text, ";\n")
		if len(statements) == 0 {
			t.Errorf("%s: no statements were found: the test reads the page wrongly", heading)
		}
		for _, sql := range statements {
			if found := rows(t, pgtest.Admin(url), sql); found == 0 && !strings.Contains(sql, "pg_replication_slots") && !strings.Contains(sql, "pg_prepared_xacts") {
				t.Errorf("no rows: %s", sql)
			}
		}
		for _, command := range steps(shellBlocks, text, "\n") {
			cmd := exec.Command("sh", "-ec", command)
			cmd.Env = append(cleanEnv(), "URL="+pgtest.Admin(url))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", command, err, out)
			}
		}
	}
}
