package world

import (
	"os"
	"os/exec"
	"testing"
)

var binaryFolder string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "cw")
	if err != nil {
		panic(err)
	}
	binaryFolder = folder
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// start starts a world of two sidecars and an app that does nothing.
func start(t *testing.T) *World {
	t.Helper()
	binary, err := Build(binaryFolder)
	if err != nil {
		t.Fatal(err)
	}
	return Start(t, Config{
		Folder: Folder(t), Logs: t.TempDir(), Binary: binary, Sidecars: 2, Apps: 1,
		Settings: map[string]string{"TTL": "2s"},
		App:      func(string, string, []string) *exec.Cmd { return exec.Command("sleep", "1h") },
	})
}

func TestWorld(t *testing.T) {
	w := start(t)
	if err := w.Healthy(); err != nil {
		t.Fatal(err)
	}
	if err := w.Failed(); err != nil {
		t.Error(err)
	}
}
