package image

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// containerEnv is the variable that says which container a process becomes.
const containerEnv = "LOCKSIDECAR_TEST_CONTAINER"

// container is what a runtime makes of a container of a pod: a root folder that nobody
// writes to, volumes, and a user without any privilege.
type container struct {
	Root    string   `json:"root"`
	Volumes []volume `json:"volumes"`
	UID     int      `json:"uid"`
	// Groups are further ones, such as the pod's fsGroup. The first has the user's number.
	Groups []int    `json:"groups"`
	Args   []string `json:"args"`
	Env    []string `json:"env"`
}

// volume is a folder, or a file, at a place in the container.
type volume struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}

// enter makes this process the container that the environment describes. Its mount
// namespace is its own already.
func enter() {
	var c container
	if err := json.Unmarshal([]byte(os.Getenv(containerEnv)), &c); err != nil {
		fatal("reading the container", err)
	}
	for _, v := range append([]volume{{Source: c.Root, ReadOnly: true}}, c.Volumes...) {
		target := filepath.Join(c.Root, v.Target)
		if err := syscall.Mount(v.Source, target, "", syscall.MS_BIND, ""); err != nil {
			fatal("mounting "+v.Source+" at "+target, err)
		}
	}
	for _, v := range append(c.Volumes, volume{ReadOnly: true}) {
		if !v.ReadOnly {
			continue
		}
		target := filepath.Join(c.Root, v.Target)
		if err := syscall.Mount("", target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			fatal("making "+target+" read-only", err)
		}
	}
	if err := c.drop(); err != nil {
		fatal("giving up privileges", err)
	}
	fatal("starting "+c.Args[0], syscall.Exec(c.Args[0], c.Args, c.Env))
}

// drop gives up the root folder of the machine, and all that root may do. A runtime drops
// capabilities one by one; another user than root has none.
func (c container) drop() error {
	const noNewPrivileges = 38 // prctl(2), PR_SET_NO_NEW_PRIVS: allowPrivilegeEscalation: false
	if _, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, noNewPrivileges, 1, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return firstError(
		func() error { return syscall.Chroot(c.Root) },
		func() error { return syscall.Chdir("/") },
		func() error { return syscall.Setgroups(c.Groups) },
		func() error { return syscall.Setgid(c.UID) },
		func() error { return syscall.Setuid(c.UID) },
	)
}

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func fatal(what string, err error) {
	fmt.Fprintf(os.Stderr, "container: %s: %v\n", what, err)
	os.Exit(125)
}
