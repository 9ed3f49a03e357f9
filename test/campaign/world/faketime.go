package world

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// faketime finds the library that gives a program another clock, and returns the variable that names the memory
// that its processes share.
//
// It is not the library for programs with threads, which takes a mutex: PostgreSQL asks for the time in signal
// handlers. This one allocates memory there, which no handler may. Once in hours a backend dies of that ("malloc
// assertion failure" in the log), and the server starts anew, as after crash-backend.
func faketime(tb testing.TB) (library, shared string) {
	tb.Helper()
	shared, err := faketimeMemory(tb)
	if err != nil {
		tb.Fatal(err)
	}
	return faketimeLibrary(tb, "libfaketime.so.1"), shared
}

// faketimeThreads is the library for a server with threads, which asks for the time in no signal handler.
func faketimeThreads(tb testing.TB) string { return faketimeLibrary(tb, "libfaketimeMT.so.1") }

func faketimeLibrary(tb testing.TB, name string) string {
	tb.Helper()
	found, _ := filepath.Glob("/usr/lib/*/faketime/" + name)
	if len(found) == 0 {
		tb.Fatal("world: libfaketime is not installed, which steps the database's clock: `apt-get install faketime`")
	}
	return found[0]
}

// faketimeMemory makes what libfaketime would make itself, but with a semaphore of many places. With its own,
// of one place, a backend that dies in fstat blocks each later fstat of all processes of the server.
func faketimeMemory(tb testing.TB) (variable string, err error) {
	semaphore := make([]byte, 32) // glibc's sem_t
	binary.NativeEndian.PutUint64(semaphore, places)
	binary.NativeEndian.PutUint32(semaphore[8:], 128) // between processes
	semName, err := sharedFile(tb, "sem.faketime", semaphore)
	if err != nil {
		return "", err
	}
	memName, err := sharedFile(tb, "faketime", make([]byte, os.Getpagesize()))
	return fmt.Sprintf("FAKETIME_SHARED=/%s /%s", strings.TrimPrefix(semName, "sem."), memName), err
}

// places is how many processes may be in fstat, and have died there.
const places = 1 << 20

// sharedFile makes a file that each user can open as shared memory.
func sharedFile(tb testing.TB, name string, content []byte) (string, error) {
	f, err := os.CreateTemp("/dev/shm", name)
	if err != nil {
		return "", err
	}
	tb.Cleanup(func() { _ = os.Remove(f.Name()) })
	_, err = f.Write(content)
	return filepath.Base(f.Name()), errors.Join(err, f.Chmod(0o666), f.Close())
}
