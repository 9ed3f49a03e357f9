package upgrade

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	none       = "none" // in the file PREVIOUS: there is no release yet
	migrations = "store/postgres/schema"
	code       = "store/postgres/code"
)

// releases are programs: the one that runs everywhere, and the one that comes.
type releases struct {
	previous, next string
	// schema is what next migrates to.
	schema int
}

// build builds them into a folder.
func build(folder string) (r releases, err error) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return r, err
	}
	text, err := os.ReadFile("PREVIOUS")
	if err != nil {
		return r, err
	}
	old := root
	if revision := strings.TrimSpace(string(text)); revision != none {
		old = filepath.Join(folder, "previous-source")
		if err := checkOut(root, revision, old); err != nil {
			return r, err
		}
		if err := frozen(root, old); err != nil {
			return r, err
		}
	}
	overlay, schema, err := further(root, folder)
	if err != nil {
		return r, err
	}
	r = releases{previous: filepath.Join(folder, "previous"), next: filepath.Join(folder, "next"), schema: schema}
	return r, errors.Join(compile(old, r.previous), compile(root, r.next, "-overlay", overlay))
}

// compile builds a sidecar as `make build` does, and calls the release as its file.
func compile(root, program string, more ...string) error {
	args := append([]string{"build", "-tags", "grpcnotrace", "-trimpath", "-o", program}, more...)
	cmd := exec.Command("go", append(args, "-ldflags", "-s -w -X main.version="+filepath.Base(program), "./cmd/locksidecar")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s in %s: %w\n%s", program, root, err, out)
	}
	return nil
}

// further tells the compiler of migrations and code behind those of the tree, and returns the
// schema that the last one makes.
func further(root, folder string) (overlay string, schema int, err error) {
	there, err := filepath.Glob(filepath.Join(root, migrations, "*.sql"))
	if err != nil || len(there) == 0 {
		return "", 0, fmt.Errorf("no migrations in %s: %w", root, err)
	}
	number, _, _ := strings.Cut(filepath.Base(there[len(there)-1]), "_")
	if schema, err = strconv.Atoi(number); err != nil {
		return "", 0, err
	}
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		return "", 0, err
	}
	files := map[string]string{filepath.Join(root, code, "next.sql"): filepath.Join(testdata, "code.sql")}
	for _, name := range []string{"expand.sql", "index.sql"} {
		schema++
		files[filepath.Join(root, migrations, fmt.Sprintf("%05d_%s", schema, name))] = filepath.Join(testdata, name)
	}
	text, err := json.Marshal(map[string]any{"Replace": files})
	if err != nil {
		return "", 0, err
	}
	overlay = filepath.Join(folder, "overlay.json")
	return overlay, schema, os.WriteFile(overlay, text, 0o644)
}

// checkOut puts a revision of a repository into a folder.
func checkOut(root, revision, folder string) error {
	git := func(args ...string) *exec.Cmd {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		return cmd
	}
	if git("rev-parse", "--verify", "--quiet", revision+"^{commit}").Run() != nil {
		return fmt.Errorf("test/campaign/upgrade/PREVIOUS names %[1]s, which this clone has not got: git fetch --depth 1 origin tag %[1]s",
			revision)
	}
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	archive := filepath.Join(folder, "archive.tar")
	if out, err := git("archive", "--output", archive, revision).CombinedOutput(); err != nil {
		return fmt.Errorf("git archive %s: %w\n%s", revision, err, out)
	}
	if out, err := exec.Command("tar", "-x", "-C", folder, "-f", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w\n%s", err, out)
	}
	return nil
}

// frozen reports whether the migrations of a release stand in the list of those that never
// change again.
func frozen(root, release string) error {
	list, err := os.ReadFile(filepath.Join(root, migrations, "released.sha256"))
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(release, migrations, "*.sql"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no migrations in %s: %w", release, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		if !strings.Contains(string(list), hex.EncodeToString(sum[:])+"  "+filepath.Base(file)+"\n") {
			return fmt.Errorf("%s was released, and does not stand in %s/released.sha256: release/freeze.sh", filepath.Base(file), migrations)
		}
	}
	return nil
}

// repository makes a repository with one commit, tagged v1.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	folder := filepath.Join(root, migrations)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"00001_x.sql": "x", "released.sha256": ""} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"init", "-q"},
		{"add", "."},
		{"-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "m"},
		{"tag", "v1"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	return root
}

// TestPrevious: a revision that a shallow clone has not got, and migrations that nobody has
// frozen, are errors that say what to do.
func TestPrevious(t *testing.T) {
	root := repository(t)
	err := checkOut(root, "v2", filepath.Join(t.TempDir(), "v2"))
	if err == nil || !strings.Contains(err.Error(), "git fetch --depth 1 origin tag v2") {
		t.Errorf("no such tag: %v", err)
	}
	release := filepath.Join(t.TempDir(), "v1")
	if err := checkOut(root, "v1", release); err != nil {
		t.Fatal(err)
	}
	if err := frozen(root, release); err == nil || !strings.Contains(err.Error(), "release/freeze.sh") {
		t.Errorf("not frozen: %v", err)
	}
	sum := sha256.Sum256([]byte("x"))
	list := hex.EncodeToString(sum[:]) + "  00001_x.sql\n"
	if err := os.WriteFile(filepath.Join(root, migrations, "released.sha256"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := frozen(root, release); err != nil {
		t.Error(err)
	}
}
