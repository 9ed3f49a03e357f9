package world

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func script(t *testing.T, text string) *program {
	t.Helper()
	p := &program{name: "script", log: filepath.Join(t.TempDir(), "log"), command: func() *exec.Cmd { return exec.Command("sh", "-c", text) }}
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// TestWhatProcessesSay: a campaign fails for what a process says before it ends, and for
// ending unasked.
func TestWhatProcessesSay(t *testing.T) {
	for text, want := range map[string]string{
		"exit 0":                                "ended by itself",
		"echo; echo WARNING: DATA RACE; exit 1": "DATA RACE",
		"echo; echo panic: x":                   "panic",
		"echo fatal error: x":                   "fatal error",
	} {
		p := script(t, text)
		<-p.ended
		if err := p.failed(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	p := script(t, "exec sleep 1h")
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if err := p.failed(); err != nil {
		t.Errorf("a process that was killed on purpose: %v", err)
	}
}

// TestFreezeTheDead: a process that has ended while its parent is frozen stays in the
// table, and never stops.
func TestFreezeTheDead(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	for state(cmd.Process.Pid) != "Z" {
		runtime.Gosched()
	}
	began := time.Now()
	if err := freeze(cmd.Process.Pid); err == nil || time.Since(began) > patience/2 {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
}

func TestFreeze(t *testing.T) {
	p := script(t, "exec sleep 1h")
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	if state := state(p.Pid()); state != "T" {
		t.Errorf("a frozen process is in state %q", state)
	}
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := await("it sleeps", func() error {
		if state := state(p.Pid()); state != "S" {
			return exec.ErrNotFound
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
