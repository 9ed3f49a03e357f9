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

// programs are those of a run, in the order of the apps.
var programs = []string{"py-threads", "py-asyncio", "py-gevent", "py-processes", "node", "java"}

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

// command is how a program is started. Each has little memory, so that one that grows ends.
func (t task) command() *exec.Cmd {
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
	case "java":
		classes, _ := os.ReadFile(filepath.Join(tree(), "clients", "java", "client", "target", "classpath"))
		path := filepath.Join(tree(), "clients", "java", "client", "target", "classes") + ":" + strings.TrimSpace(string(classes))
		cmd = exec.Command("java", "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", path, filepath.Join(here, "java", "Worker.java"), string(text))
	default:
		panic(fmt.Sprintf("clients: there is no program %q", t.Program))
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONFAULTHANDLER=1"}
	return cmd
}
