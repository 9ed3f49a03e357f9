package pgtest

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// folderPrefix starts the name of every cluster's folder; the process id of the
// tests follows. It is short: a socket's path has at most 103 bytes on macOS.
const folderPrefix = "lspg-"

// serverUser is who runs the server: nobody special, or for root, as whom
// PostgreSQL refuses to run, the user "postgres".
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no credential means: as the caller
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("pgtest: PostgreSQL does not run as root, and there is no user \"postgres\" to run it: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgtest: user postgres: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgtest: user postgres: %w", err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// newFolder makes a cluster's folder, which only its server's user may enter, in the
// system's temporary folder or in another one.
func newFolder(who *syscall.Credential, parent string) (string, error) {
	removeStale()
	folder, err := os.MkdirTemp(parent, folderPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	if who != nil {
		if err := os.Chown(folder, int(who.Uid), int(who.Gid)); err != nil {
			_ = os.RemoveAll(folder)
			return "", fmt.Errorf("pgtest: %w", err)
		}
	}
	return folder, nil
}

// removeStale removes what test processes that crashed left behind, and ends a
// server that outlived its process.
func removeStale() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*-*"))
	inMemory, _ := filepath.Glob(filepath.Join(shm, folderPrefix+"*-*"))
	for _, folder := range slices.Concat(folders, inMemory) {
		name := strings.TrimPrefix(filepath.Base(folder), folderPrefix)
		owner, _, _ := strings.Cut(name, "-")
		if pid, err := strconv.Atoi(owner); err != nil || alive(pid) {
			continue
		}
		if pid := postmaster(folder); pid > 1 && alive(pid) {
			continue // still ending, or not ours to end: a later run tidies up
		}
		_ = os.RemoveAll(folder)
	}
}

// postmaster is the process id that the cluster in a folder noted, or 0.
func postmaster(folder string) int {
	text, err := os.ReadFile(filepath.Join(folder, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(line)
	return pid
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || err == syscall.EPERM
}
