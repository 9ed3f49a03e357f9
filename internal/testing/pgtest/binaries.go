package pgtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// errMissing is the error on a machine without PostgreSQL.
var errMissing = errors.New("pgtest: PostgreSQL's server programs (initdb, postgres) are not installed: " +
	"`apt-get install postgresql` on Debian and Ubuntu, `brew install postgresql` on macOS, " +
	"or put the folder that has them into PATH")

// places are the folders of the server's programs that are not in PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin",         // Debian, Ubuntu
	"/usr/pgsql-*/bin",                  // Fedora, RHEL
	"/opt/homebrew/opt/postgresql*/bin", // macOS on ARM
	"/usr/local/opt/postgresql*/bin",    // macOS on Intel
}

// binaries finds the folder with initdb and postgres, first in PATH, then the highest version in
// the known places.
func binaries() (string, error) {
	folders := filepath.SplitList(os.Getenv("PATH"))
	for _, place := range places {
		found, _ := filepath.Glob(place)
		slices.Sort(found)
		slices.Reverse(found)
		folders = append(folders, found...)
	}
	for _, folder := range folders {
		if executable(folder, "initdb") && executable(folder, "postgres") {
			return behindLinks(folder), nil
		}
	}
	return "", errMissing
}

// behindLinks returns the folder that a folder's programs are links to. It has all programs of a
// version.
func behindLinks(folder string) string {
	target, err := filepath.EvalSymlinks(filepath.Join(folder, "postgres"))
	if err == nil && executable(filepath.Dir(target), "initdb") {
		return filepath.Dir(target)
	}
	return folder
}

func executable(folder, name string) bool {
	_, err := exec.LookPath(filepath.Join(folder, name))
	return err == nil
}
