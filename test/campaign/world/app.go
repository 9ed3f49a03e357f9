package world

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// App is a process of clients. It writes its records into a file for each start.
type App struct {
	program
	Index int

	starts  int
	records string
}

// newApp makes an app whose command gets the name of this start and a file for its
// records.
func newApp(c Config, index int, sockets []string) *App {
	a := &App{Index: index, records: c.Logs}
	name := fmt.Sprintf("app%d", index)
	a.program = program{name: name, log: filepath.Join(c.Logs, name+".log"), command: func() *exec.Cmd {
		return c.App(a.Name(), a.file(a.starts), sockets)
	}}
	return a
}

// Name is of the present start: no two starts share one.
func (a *App) Name() string { return fmt.Sprintf("%s-%d", a.program.name, a.starts) }

func (a *App) file(start int) string {
	return filepath.Join(a.records, fmt.Sprintf("%s-%d.jsonl", a.program.name, start))
}

// Start starts the app again.
func (a *App) Start() error {
	a.starts++
	return a.start()
}

// Calm tells an app that there is no fault, and none will come.
const Calm = syscall.SIGUSR1

// Calm tells the app so.
func (a *App) Calm() error { return syscall.Kill(a.Pid(), Calm) }

// Records are the files of all starts so far.
func (a *App) Records() (files []string) {
	for i := range a.starts {
		if _, err := os.Stat(a.file(i + 1)); err == nil {
			files = append(files, a.file(i+1))
		}
	}
	return files
}
