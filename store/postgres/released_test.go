package postgres_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/locksidecar/locksidecar/store/postgres"
)

// Migrations that were released have run in databases that nobody here knows: they never
// change again. `make released` writes the list.
func TestReleasedMigrationsStay(t *testing.T) {
	list, err := os.ReadFile("migrations/released.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if err := unchanged(string(list), postgres.OwnMigrations); err != nil {
		t.Error(err)
	}
}

// unchanged compares files with a list as sha256sum writes it.
func unchanged(list string, files fs.FS) error {
	var errs []error
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		text, err := fs.ReadFile(files, name)
		is := sha256.Sum256(text)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("released.sha256: %q", line))
		case err != nil || hex.EncodeToString(is[:]) != sum:
			errs = append(errs, fmt.Errorf("migrations/%s was released, and has changed since: put it back, and write a new one", name))
		}
	}
	return errors.Join(errs...)
}

func TestAChangedMigrationIsSeen(t *testing.T) {
	const sumOfX = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
	files := fstest.MapFS{"1.sql": {Data: []byte("x")}, "2.sql": {Data: []byte("y")}}
	for list, wrong := range map[string]string{
		"# of v1\n" + sumOfX + "  1.sql\n":                "",
		sumOfX + "  2.sql\n":                              "migrations/2.sql was released",
		sumOfX + "  1.sql\n" + sumOfX + "  no such.sql\n": "migrations/no such.sql was released",
		"1.sql\n": "released.sha256",
	} {
		if err := unchanged(list, files); (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: %v", list, err)
		}
	}
}
