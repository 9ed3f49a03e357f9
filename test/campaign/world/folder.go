package world

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	// folderPrefix begins the name of every world's folder; the process id of the campaign
	// follows. It is short, for sockets lie in there.
	folderPrefix = "lsw-"
	// diskName is where in it the database's file system is mounted.
	diskName = "disk"
)

// Folder makes a folder that goes with the test, and removes those that campaigns which
// were killed have left. The database has another user, who can reach the folder.
func Folder(tb testing.TB) string {
	tb.Helper()
	stale, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	for _, folder := range stale {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), folderPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
			remove(folder)
		}
	}
	folder, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", folderPrefix, os.Getpid()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { remove(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		tb.Fatal(err)
	}
	return folder
}

func remove(folder string) {
	_ = syscall.Unmount(filepath.Join(folder, diskName), syscall.MNT_DETACH)
	_ = os.RemoveAll(folder)
}

// mount makes the database's disk.
func mount(disk string) error {
	if err := os.Mkdir(disk, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("campaign", disk, "tmpfs", 0, "mode=0777,size="+diskSize); err != nil {
		return fmt.Errorf("world: mounting a file system that can be full takes root and the right to mount: %w", err)
	}
	return nil
}

// fill fills a disk, and returns what makes room again.
func fill(disk string) (room func() error, err error) {
	name := filepath.Join(disk, "filler")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	room = func() error { return os.Remove(name) }
	chunk := make([]byte, 1<<20)
	for size := len(chunk); size > 0; {
		_, err := f.Write(chunk[:size])
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			return room, errors.Join(err, f.Close())
		}
	}
	return room, f.Close()
}
