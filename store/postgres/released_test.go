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

// Released migrations have run in unknown databases. So the files of the schema do not change, and
// the code changes only together with a new file. `release/freeze.sh` writes the list.
// Proves: trap migration
func TestReleasedMigrationsStay(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("schema/released.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if err := unchanged(string(list), postgres.OwnSchema, postgres.OwnCode); err != nil {
		t.Error(err)
	}
}

// unchanged compares files with a list in the format of sha256sum. In this list, code is the sum of
// all files of the code in order.
func unchanged(list string, schema, code fs.FS) error {
	var errs []error
	files, err := fs.Glob(schema, "*.sql")
	if err != nil {
		return err
	}
	released := 0
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		sum, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("released.sha256: %q", line))
		case name == "code":
			is, err := sumOf(code)
			if err == nil && is != sum && released == len(files) {
				err = errors.New("the code has changed since the release: no database would get it without a new file of the schema, which may be empty")
			}
			errs = append(errs, err)
		default:
			released++
			text, err := fs.ReadFile(schema, name)
			if is := sha256.Sum256(text); err != nil || hex.EncodeToString(is[:]) != sum {
				errs = append(errs, fmt.Errorf("schema/%s was released, and has changed since: put it back, and write a new one", name))
			}
		}
	}
	return errors.Join(errs...)
}

func sumOf(folder fs.FS) (string, error) {
	sum := sha256.New()
	names, err := fs.Glob(folder, "*.sql")
	for _, name := range names {
		var text []byte
		if text, err = fs.ReadFile(folder, name); err != nil {
			break
		}
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil)), err
}

func TestAChangedMigrationIsSeen(t *testing.T) {
	t.Parallel()
	const (
		sumOfX  = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
		sumOfY  = "a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa"
		sumOfXY = "769a4e6d0003189c7e96c5d9b7e810a0d11c3a12832527ec94b0f86d277f51ca"
	)
	files := fstest.MapFS{"1.sql": {Data: []byte("x")}, "2.sql": {Data: []byte("y")}}
	for list, wrong := range map[string]string{
		"# of v1\n" + sumOfX + "  1.sql\n":                "",
		sumOfX + "  2.sql\n":                              "schema/2.sql was released",
		sumOfX + "  1.sql\n" + sumOfX + "  no such.sql\n": "schema/no such.sql was released",
		"1.sql\n": "released.sha256",
		sumOfX + "  1.sql\n" + sumOfY + "  2.sql\n" + sumOfXY + "  code\n": "",
		sumOfX + "  1.sql\n" + sumOfX + "  code\n":                         "", // a new file of the schema installs the code
		sumOfX + "  1.sql\n" + sumOfY + "  2.sql\n" + sumOfX + "  code\n":  "the code has changed",
	} {
		if err := unchanged(list, files, files); (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: %v", list, err)
		}
	}
}
