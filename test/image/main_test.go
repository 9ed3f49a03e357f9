package image

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// patience is how long the tests wait for what must happen.
const patience = time.Minute

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

// private runs the tests in a mount namespace of their own. All that they mount and build is gone when they end, even
// if they crash.
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
	defer func() {
		for range 50 { // whoever was just killed may still have made a file
			if os.RemoveAll(folder) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	if err := os.Chmod(folder, 0o711); err != nil { // the database's user has a folder in it
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), privateEnv+"="+folder, "TMPDIR="+folder)
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// A signal that stops the tests stops their group, with the builds. This process
	// outlives it and tidies up.
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if err = self.Start(); err == nil {
		go func() {
			<-stops
			_ = syscall.Kill(-self.Process.Pid, syscall.SIGKILL)
		}()
		err = self.Wait()
		_ = syscall.Kill(-self.Process.Pid, syscall.SIGKILL)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return self.ProcessState.ExitCode()
}

func run(m *testing.M) int {
	syscall.Umask(0o022) // the folders of a node are not made by whoever runs the tests
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

// TestStopped: if somebody stops the tests, they leave nothing behind.
func TestStopped(t *testing.T) {
	temporary := t.TempDir()
	must(t, os.Chmod(filepath.Dir(temporary), 0o755)) // for the database's user
	tests := exec.Command("/proc/self/exe", "-test.run=TestReproducible")
	tests.Env = append(os.Environ(), privateEnv+"=", "TMPDIR="+temporary)
	must(t, tests.Start())
	built := filepath.Join(temporary, "lsimage-*", "storage", "*")
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if found, _ := filepath.Glob(built); len(found) > 0 {
			break
		}
		if time.Since(began) > patience {
			t.Fatal("nothing is built")
		}
	}
	must(t, tests.Process.Signal(syscall.SIGTERM))
	if err := tests.Wait(); err == nil {
		t.Error("stopped, and it says that all is well")
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
