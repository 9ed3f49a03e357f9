// Package flow counts the files of package lease, with its rooms, that one acquire passes. A newcomer should be able
// to read the two main flows in few files: the acquire of a free key, and one that waits until it is handed the key.
package flow

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/locksidecar/locksidecar/"

// A file counts if the flow runs at least one of its statements. Work in the background is not a part of the flow, but
// may happen meanwhile, so the run with the fewest files counts.
func TestFilesOfAnAcquire(t *testing.T) {
	program := filepath.Join(t.TempDir(), "acquire")
	build := exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"lease/...,"+module+"test/flow/acquire",
		"-o", program, "./acquire")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for flow, limit := range map[string]int{"free": 8, "waiting": 10} {
		t.Run(flow, func(t *testing.T) {
			files := filesOf(t, program, flow)
			for range 4 {
				if again := filesOf(t, program, flow); len(again) < len(files) {
					files = again
				}
			}
			t.Logf("%d files:\n%s", len(files), strings.Join(files, "\n"))
			if len(files) > limit {
				t.Errorf("the flow passes %d files, and should pass at most %d: keep what it needs together, or say why not", len(files), limit)
			}
			for _, needed := range []string{"lease/acquire.go", "lease/internal/attempt/acquire.go"} {
				if !slices.Contains(files, needed) {
					t.Errorf("%s is missing, so this is not an acquire", needed)
				}
			}
		})
	}
}

// filesOf runs a flow and returns the files of which it has run something.
func filesOf(t *testing.T, program, flow string) (files []string) {
	t.Helper()
	counters := t.TempDir()
	run := exec.Command(program, flow)
	run.Env = append(os.Environ(), "GOCOVERDIR="+counters)
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	profile := filepath.Join(counters, "profile")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	// A line is name.go:12.3,15.2 2 1: two statements, run once. The first line names the mode.
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		file, rest, _ := strings.Cut(lines.Text(), ":")
		name, ours := strings.CutPrefix(file, module+"lease/")
		fields := strings.Fields(rest)
		if !ours || len(fields) != 3 {
			continue
		}
		if times, err := strconv.Atoi(fields[2]); err != nil {
			t.Fatal(err)
		} else if times > 0 {
			files = append(files, "lease/"+name)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}
