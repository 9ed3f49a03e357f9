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

// folderPrefix is the start of the name of every cluster's folder, before the tests' process id. It
// is short, because a socket's path has at most 103 bytes on macOS.
const folderPrefix = "lspg-"

// serverUser returns the user who runs the server: the caller, or "postgres" instead of root,
// because PostgreSQL does not run as root.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // nil means the caller's user
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

// newFolder makes a cluster's folder, which only the server's user may enter, in parent or the
// system's temporary folder.
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

// removeStale removes the folders of crashed test processes, and ends a server that has outlived
// its process.
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
			continue // still ending, or owned by another user: a later run removes it
		}
		_ = os.RemoveAll(folder)
	}
}

// postmaster returns the process id that the cluster in a folder has written, or 0.
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
