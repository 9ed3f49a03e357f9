// Command profiled is locksidecar for `go run ./bench -profile -write`: at its end it writes profiles of itself into PROFILE_FOLDER: cpu, and for
// the whole run allocs, mutex and block.
package main

import (
	"errors"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"

	"github.com/locksidecar/locksidecar/internal/cli"
)

func main() {
	if err := profile(os.Getenv("PROFILE_FOLDER")); err != nil {
		log.Fatal(err)
	}
}

func profile(folder string) error {
	// Too rare to show in the CPU profile: each hundredth wait for a mutex, one sample per 10 ms of
	// others.
	runtime.SetMutexProfileFraction(100)
	runtime.SetBlockProfileRate(10_000_000)
	cpu, err := os.Create(filepath.Join(folder, "cpu"))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return err
	}
	err = cli.Execute("profiled", os.Args[1:], os.Stdout, os.Stderr)
	pprof.StopCPUProfile()
	err = errors.Join(err, cpu.Close())
	for _, name := range []string{"allocs", "mutex", "block"} {
		err = errors.Join(err, write(name, filepath.Join(folder, name)))
	}
	return err
}

func write(name, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup(name).WriteTo(file, 0), file.Close())
}
