package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// describeMachine says where the figures come from.
func describeMachine() string {
	return fmt.Sprintf("%d cores of %s, %s, Linux %s, %s, %s.",
		runtime.NumCPU(), field("/proc/cpuinfo", "model name"), memory(), first("/proc/sys/kernel/osrelease"),
		runtime.Version(), postgresVersion())
}

func memory() string {
	var kib int
	_, _ = fmt.Sscanf(field("/proc/meminfo", "MemTotal"), "%d", &kib)
	return fmt.Sprintf("%d GiB", (kib+1<<19)>>20)
}

func postgresVersion() string {
	out, err := exec.Command("psql", "--version").Output()
	if err != nil {
		return "no psql"
	}
	return strings.TrimSpace(string(out))
}

// field is the value of the first "name: value" line of a file.
func field(path, name string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.SplitSeq(string(text), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "?"
}

func first(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}
