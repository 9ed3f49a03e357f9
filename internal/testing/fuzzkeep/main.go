// Command fuzzkeep reads the inputs that fuzzing has found, from Go's build cache. It keeps a few
// of them under testdata/fuzz: those that reach new code, or reach code more often than the seeds
// and the other kept inputs. `go test` runs the kept inputs, and later fuzzing on any machine
// starts with them.
//
//	go run ./internal/testing/fuzzkeep [folders of packages]
package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log"
	"math/bits"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	// mostInputs is the largest number of inputs of a target, and maxBytes the largest size of an
	// input. The limits keep the repository and `go test` small.
	mostInputs = 15
	maxBytes   = 6 << 10
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	folders := os.Args[1:]
	if len(folders) == 0 {
		folders = foldersWithTargets()
	}
	for _, folder := range folders {
		if err := keep(ctx, folder); err != nil {
			log.Fatalf("%q: %v", folder, err) //nolint:gocritic // nothing is left to stop
		}
	}
}

var fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// targetsIn returns the fuzz targets of a package.
func targetsIn(folder string) (targets []string) {
	files, _ := filepath.Glob(filepath.Join(folder, "*_test.go"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range fuzzFunc.FindAllSubmatch(text, -1) {
			targets = append(targets, string(m[1]))
		}
	}
	return targets
}

func foldersWithTargets() (folders []string) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && len(targetsIn(path)) > 0 {
			folders = append(folders, path)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	return folders
}

// keep keeps inputs of all targets of a package.
func keep(ctx context.Context, folder string) error {
	work, err := os.MkdirTemp("", "fuzzkeep-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	binary := filepath.Join(work, "tests")
	if _, err := output(ctx, "go", "test", "-c", "-cover", "-covermode=count", "-o", binary, "./"+folder); err != nil {
		return err
	}
	cache, err := output(ctx, "go", "env", "GOCACHE")
	if err != nil {
		return err
	}
	name, err := output(ctx, "go", "list", "./"+folder)
	if err != nil {
		return err
	}
	for _, target := range targetsIn(folder) {
		t := corpus{
			name: target, binary: binary, work: work, kept: filepath.Join(folder, "testdata", "fuzz", target),
			cached: filepath.Join(cache, "fuzz", name, target),
		}
		if err := t.keep(ctx); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	return strings.TrimSpace(string(out)), err
}

// reached contains the blocks of code that an input reaches, each with its rough count.
type reached map[string]bool

// corpus is the inputs of a target.
type corpus struct {
	name, binary, work string
	kept, cached       string // folders of inputs
}

// keep adds inputs one after the other, each time the input that reaches the most new blocks.
func (t corpus) keep(ctx context.Context) error {
	base, err := t.run(ctx, "", nil)
	if err != nil {
		return err
	}
	before, err := inputsIn(t.kept)
	if err != nil {
		return err
	}
	for _, text := range before {
		also, err := t.run(ctx, "kept", text)
		if err != nil {
			return err
		}
		base.add(also)
	}
	found, err := inputsIn(t.cached)
	if err != nil {
		return err
	}
	reaches := map[string]reached{}
	for name, text := range found {
		if len(text) > maxBytes || before[name] != nil {
			continue
		}
		if reaches[name], err = t.run(ctx, "found", text); err != nil {
			return fmt.Errorf("%s, which fuzzing has found: %w", name, err)
		}
	}
	count := len(before)
	for ; count < mostInputs; count++ {
		best, gain := "", 0
		for name, r := range reaches {
			n := r.beyond(base)
			if n > gain || n == gain && n > 0 && len(found[name]) < len(found[best]) {
				best, gain = name, n
			}
		}
		if gain == 0 {
			break
		}
		base.add(reaches[best])
		delete(reaches, best)
		if err := write(filepath.Join(t.kept, best), found[best]); err != nil {
			return err
		}
	}
	log.Printf("%s: %d of %d inputs kept, %d of them before", t.name, count, len(found), len(before))
	return nil
}

func inputsIn(folder string) (map[string][]byte, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	inputs := map[string][]byte{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		inputs[e.Name()] = text
	}
	return inputs, nil
}

func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// run returns the blocks that one input reaches, or those of the seeds if the name is empty.
func (t corpus) run(ctx context.Context, name string, text []byte) (reached, error) {
	folder := filepath.Join(t.work, "testdata", "fuzz", t.name)
	if err := os.RemoveAll(folder); err != nil {
		return nil, err
	}
	which := "seed#"
	if name != "" {
		which = name + "$"
		if err := write(filepath.Join(folder, name), text); err != nil {
			return nil, err
		}
	}
	profile := filepath.Join(t.work, "profile")
	cmd := exec.CommandContext(ctx, t.binary, "-test.run=^"+t.name+"$/^"+which, "-test.coverprofile="+profile)
	cmd.Dir = t.work
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	content, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	r := reached{}
	for line := range bytes.Lines(content) {
		fields := strings.Fields(string(line)) // place, statements, count
		if len(fields) != 3 {
			continue
		}
		if n, err := strconv.ParseUint(fields[2], 10, 64); err == nil && n > 0 {
			r[fmt.Sprint(fields[0], bits.Len64(min(n, 8)))] = true
		}
	}
	return r, nil
}

func (r reached) add(more reached) {
	for what := range more {
		r[what] = true
	}
}

func (r reached) beyond(base reached) (n int) {
	for what := range r {
		if !base[what] {
			n++
		}
	}
	return n
}
