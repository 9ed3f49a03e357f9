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
// clock has jumped, and then by how much its time of day is ahead.
const bootEnv = "CAMPAIGN_BOOT_JUMP"

// overlay says what is put in the place of what, in the sources of a package. The sources have no such
// hooks: the compiler is told to read another file in the place of theirs.
type overlay struct{ file, old, new, more string }

var overlays = []overlay{
	{
		file: "lease/internal/clock/clock_linux.go", old: "func bootTime() time.Duration {",
		new: "func bootTime() time.Duration { return realBootTime() + jump(0) }\n\nfunc realBootTime() time.Duration {", more: jump,
	},
	{
		file: "store/cas/turn.go", old: "wall.Truncate(time.Microsecond)",
		new: "wall.Round(0).Add(jump(8)).Truncate(time.Microsecond)", more: jump,
	},
}

// jump reads by how much a clock has jumped.
const jump = `
var jumpFile, _ = os.Open(os.Getenv("` + bootEnv + `"))

func jump(at int64) time.Duration {
	var b [8]byte
	if n, _ := jumpFile.ReadAt(b[:], at); n < len(b) {
		panic("a sidecar of the campaign runs without ` + bootEnv + `")
	}
	return time.Duration(binary.LittleEndian.Uint64(b[:]))
}
`

// Build compiles the sidecar into a folder, with the race detector, a boot-time clock
// that can be made to jump, and a time of day that can be set where a store in Go reads it.
func Build(folder string) (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/locksidecar/locksidecar").Output()
	if err != nil {
		return "", fmt.Errorf("world: the sidecar's sources: %w", err)
	}
	overlay, err := overlayFile(folder, strings.TrimSpace(string(root)))
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

func overlayFile(folder, root string) (string, error) {
	replace := map[string]string{}
	for _, o := range overlays {
		source := filepath.Join(root, filepath.FromSlash(o.file))
		text, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		if strings.Count(string(text), o.old) != 1 {
			return "", fmt.Errorf("world: %s has no %q to put another in its place", source, o.old)
		}
		changed := strings.Replace(string(text), o.old, o.new, 1) + o.more
		for _, imported := range []string{"os", "encoding/binary"} {
			if line := fmt.Sprintf("\t%q\n", imported); !strings.Contains(changed, line) {
				changed = strings.Replace(changed, "import (\n", "import (\n"+line, 1)
			}
		}
		replace[source] = filepath.Join(folder, filepath.Base(o.file))
		if err := os.WriteFile(replace[source], []byte(changed), 0o644); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(folder, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o644)
}

// Slept makes the sidecar's boot-time clock jump, as if the machine had been suspended.
func (s *Sidecar) Slept(d time.Duration) error {
	s.slept += d
	return writeJump(s.jump, 0, s.slept)
}

// Step sets the sidecar's time of day ahead of the machine's by so much, where a store in Go reads it.
func (s *Sidecar) Step(ahead time.Duration) error { return writeJump(s.jump, 8, ahead) }

func writeJump(file string, at int64, d time.Duration) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(d)), at)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
