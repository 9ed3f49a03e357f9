package world

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// bootEnv names the file in which a sidecar under test finds by how much its boot-time
// clock has jumped.
const bootEnv = "CAMPAIGN_BOOT_JUMP"

// bootTime takes the place of the function of the same name. The sources have no such
// hook: the compiler is told to read another file in the place of theirs.
const bootTime = `
var jumpFile, _ = os.Open(os.Getenv("` + bootEnv + `"))

func bootTime() time.Duration {
	var b [8]byte
	if n, _ := jumpFile.ReadAt(b[:], 0); n < len(b) {
		panic("a sidecar of the campaign runs without ` + bootEnv + `")
	}
	return realBootTime() + time.Duration(binary.LittleEndian.Uint64(b[:]))
}

func realBootTime() time.Duration {`

// Build compiles the sidecar into a folder, with the race detector and a boot-time clock
// that can be made to jump.
func Build(folder string) (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/locksidecar/locksidecar").Output()
	if err != nil {
		return "", fmt.Errorf("world: the sidecar's sources: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "lease", "internal", "clock", "clock_linux.go")
	overlay, err := overlayFile(folder, source)
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, "locksidecar")
	build := exec.Command("go", "build", "-race", "-overlay", overlay, "-o", program, "./cmd/locksidecar")
	build.Dir = strings.TrimSpace(string(root))
	// As the sidecar's own tests, which have compiled most of it then.
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("world: building the sidecar: %w\n%s", err, out)
	}
	return program, nil
}

func overlayFile(folder, source string) (string, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	const function = "func bootTime() time.Duration {"
	if strings.Count(string(text), function) != 1 {
		return "", fmt.Errorf("world: %s has no %q to put another in its place", source, function)
	}
	changed := strings.Replace(string(text), function, bootTime, 1)
	changed = strings.Replace(changed, "import (", "import (\n\t\"encoding/binary\"\n\t\"os\"", 1)
	other := filepath.Join(folder, "clock_linux.go")
	if err := os.WriteFile(other, []byte(changed), 0o644); err != nil {
		return "", err
	}
	text, err = json.Marshal(map[string]any{"Replace": map[string]string{source: other}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(folder, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o644)
}

// Slept makes the sidecar's boot-time clock jump, as if the machine had been suspended.
func (s *Sidecar) Slept(d time.Duration) error {
	s.slept += d
	return writeJump(s.jump, s.slept)
}

func writeJump(file string, d time.Duration) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(d)), 0)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
