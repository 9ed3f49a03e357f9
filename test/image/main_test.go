package image

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/pgtest"
)

// patience is how long the tests wait for what must happen.
const patience = 20 * time.Second

// cluster is a PostgreSQL of our own; each test has a database in it.
var cluster *pgtest.Cluster

// privateEnv marks the process that runs the tests, in a mount namespace of its own. It is
// the folder for what they build.
const privateEnv = "LOCKSIDECAR_TEST_PRIVATE"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(containerEnv) != "":
		enter() // this process becomes a container
	case os.Getenv(appEnv) != "":
		runApp() // or is the app in one
	case os.Getenv(privateEnv) == "":
		os.Exit(private())
	}
	flag.Parse()
	os.Exit(run(m))
}

// private runs the tests in a mount namespace of their own: whatever they mount and build
// goes with them, even when they crash.
func private() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests mount folders and change users: run them as root, such as by `sudo make test-image`")
		return 1
	}
	folder, err := os.MkdirTemp("", "lsimage-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), privateEnv+"="+folder)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = self.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return self.ProcessState.ExitCode()
}

func run(m *testing.M) int {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "making this process's mounts its own:", err)
		return 1
	}
	for _, program := range []string{"buildah", "busybox", "make"} {
		if _, err := exec.LookPath(program); err != nil {
			fmt.Fprintf(os.Stderr, "%v: `make test-image` installs it\n", err)
			return 1
		}
	}
	if err := openStorage(os.Getenv(privateEnv)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return pgtest.Main(m, &cluster, pgtest.WithTCP(), pgtest.WithoutFsync())
}
