// Command go runs the contract suite through the client for Go, on the stores of CONTRACT_STORES: clients/contract/README.md. It runs in the
// root of the repository, and its argument is a part of the names of the cases to run. With CONTRACT_OVER=tcp the client calls the sidecar over TCP.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

// atATime is how many files run at the same time: they wait most of it.
const atATime = 4

type file struct {
	name string

	About   string            `yaml:"about"`
	Sidecar map[string]string `yaml:"sidecar"`
	Ready   *bool             `yaml:"ready"`
	Cases   []testCase        `yaml:"cases"`
}

type testCase struct {
	Name     string           `yaml:"name"`
	Features []string         `yaml:"features"`
	Steps    []map[string]any `yaml:"steps"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "contract:", err)
		os.Exit(1)
	}
}

func run() error {
	only := ""
	if len(os.Args) > 1 {
		only = os.Args[1]
	}
	if os.Getenv("LOCKSIDECAR_BINARY") == "" {
		if err := os.Setenv("LOCKSIDECAR_BINARY", "bin/locksidecar"); err != nil {
			return err
		}
	}
	files, err := load()
	if err != nil {
		return err
	}
	stores := strings.Fields(os.Getenv("CONTRACT_STORES"))
	if len(stores) == 0 {
		stores = strings.Fields("memory postgres etcd mysql redis")
	}
	var given map[string]string
	if text := os.Getenv("CONTRACT_STORE"); text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			return fmt.Errorf("CONTRACT_STORE: %w", err)
		}
		stores = []string{"given"}
	}
	over, by := "", (*tcp)(nil)
	if os.Getenv("CONTRACT_OVER") == "tcp" {
		if by, err = newTCP(); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(by.folder) }()
		over = " over TCP"
	}
	failed := false
	for i, store := range stores {
		t := &tally{by: by}
		if err := t.on(store, given, files, only, i == 0 && given == nil); err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
		sayf("contract, go, %s%s: %d passed, %d not run, %d failed", store, over, t.passed, t.notRun, t.failed)
		failed = failed || t.failed+t.notRun > 0 || t.passed == 0
	}
	if failed {
		return errors.New("FAILED")
	}
	sayf("contract, go%s: ok", over)
	return nil
}

func sayf(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }

func load() ([]*file, error) {
	paths, err := filepath.Glob("clients/contract/cases/*.yaml")
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("there are no cases here; run it in the root of the repository (%w)", err)
	}
	files := make([]*file, len(paths))
	for i, path := range paths {
		in, err := os.Open(path) //nolint:gosec // of the suite
		if err != nil {
			return nil, err
		}
		files[i] = &file{name: filepath.Base(path)}
		decoder := yaml.NewDecoder(in)
		decoder.KnownFields(true)
		err = decoder.Decode(files[i])
		_ = in.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return files, nil
}

// tally counts the cases of one store.
type tally struct {
	by                     *tcp // nil: on the socket
	mu                     sync.Mutex
	passed, notRun, failed int
}

func (t *tally) on(store string, given map[string]string, files []*file, only string, first bool) error {
	settings := given
	if given == nil {
		url, stop, err := server(store)
		if err != nil {
			return err
		}
		defer stop()
		settings = map[string]string{"STORE_URL": url}
	}
	places := make(chan struct{}, atATime)
	var all sync.WaitGroup
	errs := make([]error, len(files))
	for i, f := range files {
		if f.Sidecar["STORE_URL"] != "" && !first {
			continue // it names its own store, so it runs once
		}
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			if err := t.play(f, settings, only); err != nil {
				errs[i] = fmt.Errorf("%s: %w", f.name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// server starts the server of a store, which the suite's own program does.
func server(store string) (url string, stop func(), err error) {
	cmd := exec.Command("python3", "clients/contract/curl/processes.py", store) //nolint:gosec,noctx // it ends with its input
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the server did not start: %w", err)
	}
	return strings.TrimSpace(line), stop, nil
}

func (t *tally) play(f *file, store map[string]string, only string) error {
	cases := slices.DeleteFunc(slices.Clone(f.Cases), func(c testCase) bool { return !strings.Contains(c.Name, only) })
	if len(cases) == 0 {
		return nil
	}
	settings := map[string]string{"LOG_LEVEL": "warn", "ALLOW_FORCE": "false"}
	maps.Copy(settings, store)
	settings["NAMESPACE"] = f.name
	maps.Copy(settings, f.Sidecar)
	if t.by != nil {
		t.by.add(settings)
	}
	s, err := locksidecartest.New(settings)
	if err != nil {
		return err
	}
	defer s.Close()
	start := s.Run
	if f.Ready != nil && !*f.Ready {
		start = s.RunUnready
	}
	if err := start(); err != nil {
		return err
	}
	at := locksidecar.Config{Socket: s.Socket}
	if t.by != nil {
		if at, err = t.by.client(s); err != nil {
			return err
		}
	}
	asks := locksidecar.New(at)
	description, err := asks.Describe(context.Background())
	_ = asks.Close()
	if err != nil {
		return err
	}
	for _, c := range cases {
		missing := slices.DeleteFunc(slices.Clone(c.Features), description.Has)
		if len(missing) > 0 {
			t.count(&t.notRun)
			sayf("not run: %s: %s: the sidecar lacks %s", f.name, c.Name, strings.Join(missing, ", "))
			continue
		}
		p := newPlayer(s, at, rand.Text()[:8]+"-")
		wrong := p.play(c.Steps)
		p.end()
		if wrong == nil {
			t.count(&t.passed)
			continue
		}
		t.count(&t.failed)
		sayf("FAILED: %s: %s: %v", f.name, c.Name, wrong)
	}
	return nil
}

func (t *tally) count(n *int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*n++
}
