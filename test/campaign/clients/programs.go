package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// programs are those of a run, in the order of the apps. Without a choice all but the last two run, which take long to compile.
var programs = []string{"py-threads", "py-asyncio", "py-gevent", "py-processes", "node", "go", "ruby", "php", "java", "rust"}

const (
	// actors are the threads or tasks of a program.
	actors = 10
	// timeout and reconnect are settings of the clients.
	timeout   = 4 * time.Second
	reconnect = 10 * time.Second
	// asked is the lease that the programs ask for. It is that of the sidecars, so it is open already.
	asked = 2 * time.Second
)

// task is what a program gets to know.
type task struct {
	Name      string  `json:"name"`
	Program   string  `json:"program"`
	Records   string  `json:"records"`
	Socket    string  `json:"socket"`
	Sidecar   int     `json:"sidecar"`
	Seed      uint64  `json:"seed"`
	Actors    int     `json:"actors"`
	Timeout   float64 `json:"timeout"` // seconds
	Reconnect float64 `json:"reconnect"`
	TTL       float64 `json:"ttl"`
	// Forms are the ways to get locks that it uses; empty: all that it has.
	Forms []string `json:"forms"`
	// Offset is by how much the clock of all histories is ahead of the monotonic one, in ns.
	Offset int64 `json:"offset"`
}

// tree is the root of the repository. A test runs in the folder of its package.
func tree() string {
	here, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		panic(err) // the folder is gone
	}
	return here
}

// buildGo compiles the program on the client for Go into a folder, and returns its path.
func buildGo(folder string) (string, error) {
	program := filepath.Join(folder, "program-go")
	build := exec.Command("go", "build", "-race", "-o", program, "./go")
	build.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("clients: building the program for Go: %w\n%s", err, out)
	}
	return program, nil
}

// command is how a program is started; compiled is that for Go. Each has little memory, so that one that grows ends.
func (t task) command(compiled string) *exec.Cmd {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and numbers
	}
	here := filepath.Join(tree(), "test", "campaign", "clients")
	language, _, _ := strings.Cut(t.Program, "-")
	var cmd *exec.Cmd
	switch language {
	case "py":
		cmd = exec.Command(filepath.Join(tree(), "clients", "python", ".venv", "bin", "python"), filepath.Join(here, "python", "worker.py"), string(text))
	case "node":
		cmd = exec.Command("node", "--enable-source-maps", "--max-old-space-size=64", filepath.Join(here, "node", "worker.mjs"), string(text))
	case "go":
		cmd = exec.Command(compiled, string(text))
	case "ruby":
		cmd = exec.Command("ruby", filepath.Join(here, "ruby", "worker.rb"), string(text))
	case "php":
		cmd = exec.Command("php", "-d", "memory_limit=64M", filepath.Join(here, "php", "worker.php"), string(text))
	case "java":
		classes, _ := os.ReadFile(filepath.Join(tree(), "clients", "java", "client", "target", "classpath"))
		path := filepath.Join(tree(), "clients", "java", "client", "target", "classes") + ":" + strings.TrimSpace(string(classes))
		cmd = exec.Command("java", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", path, filepath.Join(here, "java", "Worker.java"), string(text))
	case "rust":
		cmd = exec.Command(filepath.Join(tree(), "clients", "rust", "target", "debug", "examples", "campaign"), string(text))
	default:
		panic(fmt.Sprintf("clients: there is no program %q", t.Program))
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1"}
	return cmd
}
