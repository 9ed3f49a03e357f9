//go:build profile

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
)

// profiled runs the program, and writes profiles into PROFILE_FOLDER: cpu, and for the whole run
// allocs, mutex and block. It is for `make bench-profile`; releases lack this file.
func profiled(program func() error) error {
	folder := os.Getenv("PROFILE_FOLDER")
	if folder == "" {
		return program()
	}
	// Too rare to show in the CPU profile: each hundredth wait for a mutex, one sample per 10 ms of
	// others.
	runtime.SetMutexProfileFraction(100)
	runtime.SetBlockProfileRate(10_000_000)
	cpu, err := os.Create(filepath.Join(folder, "cpu")) //nolint:gosec // who measures names the folder
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	err = program()
	pprof.StopCPUProfile()
	err = errors.Join(err, cpu.Close())
	for _, name := range []string{"allocs", "mutex", "block"} {
		err = errors.Join(err, writeProfile(name, filepath.Join(folder, name)))
	}
	return err
}

func writeProfile(name, path string) error {
	file, err := os.Create(path) //nolint:gosec // who measures names the folder
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	return errors.Join(pprof.Lookup(name).WriteTo(file, 0), file.Close())
}
