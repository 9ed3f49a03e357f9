package pgtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// initial is the data that all clusters of this process start with. initdb takes a second of
// processor time, so it runs once, and each cluster copies its result. The last cluster that stops
// removes it.
var initial struct {
	mu     sync.Mutex
	folder string
	users  int
}

// errControl: pg_control has another format than PostgreSQL 14 to 18 use.
var errControl = errors.New("pgtest: no checksum is found in pg_control")

// initialize fills the cluster's data folder.
func (c *Cluster) initialize() error {
	from, err := c.initialData()
	if err != nil {
		return err
	}
	cp := c.command("initdb")
	if cp.Path, err = exec.LookPath("cp"); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	cp.Args = []string{"cp", "-R", "-p", from, c.data()}
	if out, err := toItsEnd(cp); err != nil {
		return fmt.Errorf("pgtest: cp: %w\n%s", err, out)
	}
	return c.becomeAnother()
}

// initialData returns the folder of the initial data.
func (c *Cluster) initialData() (string, error) {
	initial.mu.Lock()
	defer initial.mu.Unlock()
	if initial.folder == "" {
		folder, err := newFolder(c.who, Memory())
		if err != nil {
			return "", err
		}
		initdb := c.command("initdb", "--pgdata="+filepath.Join(folder, "data"), "--username=postgres", "--auth=trust",
			"--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C")
		if out, err := toItsEnd(initdb); err != nil {
			return "", errors.Join(fmt.Errorf("pgtest: initdb: %w\n%s", err, out), os.RemoveAll(folder))
		}
		initial.folder = folder
	}
	c.copied = true
	initial.users++
	return filepath.Join(initial.folder, "data"), nil
}

// handBackInitial removes the initial data after its last cluster.
func (c *Cluster) handBackInitial() {
	initial.mu.Lock()
	defer initial.mu.Unlock()
	if !c.copied {
		return
	}
	c.copied = false
	if initial.users--; initial.users == 0 {
		_ = os.RemoveAll(initial.folder)
		initial.folder = ""
	}
}

// becomeAnother gives a copy its own system identifier, like initdb, because a sidecar refuses a
// cluster with another identifier. PostgreSQL's pg_createsubscriber does it in the same way.
func (c *Cluster) becomeAnother() error {
	path := filepath.Join(c.data(), "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	sum := 8 // the checksum comes after the identifier
	for ; ; sum += 4 {
		if sum+4 > len(control) {
			return errControl
		}
		if binary.NativeEndian.Uint32(control[sum:]) == crc32.Checksum(control[:sum], castagnoli) {
			break
		}
	}
	binary.NativeEndian.PutUint64(control, uint64(time.Now().UnixNano()))
	binary.NativeEndian.PutUint32(control[sum:], crc32.Checksum(control[:sum], castagnoli))
	if err := os.WriteFile(path, control, 0o600); err != nil { // the file stays owned by the server's user
		return fmt.Errorf("pgtest: %w", err)
	}
	// The write-ahead log contains the identifier, too.
	if out, err := toItsEnd(c.command("pg_resetwal", "--pgdata="+c.data())); err != nil {
		return fmt.Errorf("pgtest: pg_resetwal: %w\n%s", err, out)
	}
	return nil
}
