package etcdtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// required is the line of test/etcd/go.mod that says which version `test/deps.sh etcd` builds.
var required = regexp.MustCompile(`(?m)go\.etcd\.io/etcd/server/v3 v(\S+)`)

// Binary returns the path of the server that `test/deps.sh etcd` has built for this repository.
func Binary() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("etcdtest: %w", err)
	}
	for ; ; folder = filepath.Dir(folder) {
		text, err := os.ReadFile(filepath.Join(folder, "test", "etcd", "go.mod"))
		if err == nil {
			version := required.FindSubmatch(text)
			if version == nil {
				return "", errors.New("etcdtest: test/etcd/go.mod does not require etcd's server")
			}
			path := filepath.Join(folder, ".bin", "etcd-"+string(version[1]))
			if _, err := os.Stat(path); err != nil {
				return "", fmt.Errorf("etcdtest: the server is not built: run `test/deps.sh etcd`: %w", err)
			}
			return path, nil
		}
		if folder == filepath.Dir(folder) {
			return "", errors.New("etcdtest: test/etcd/go.mod is in none of the folders above this one")
		}
	}
}
