package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// appEnv holds what a process of clients is to do. Such a process is this program again.
const appEnv = "CAMPAIGN_APP"

type appTask struct {
	Name    string   `json:"name"`
	Records string   `json:"records"`
	Fence   string   `json:"fence"`
	Sockets []string `json:"sockets"`
	Seed    uint64   `json:"seed"`
}

func appCommand(task appTask) *exec.Cmd {
	text, err := json.Marshal(task)
	if err != nil {
		panic(err) // strings and numbers
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), appEnv + "=" + string(text), "GORACE=halt_on_error=1"}
	return cmd
}

// runApp is such a process, until SIGTERM.
func runApp(text string) error {
	var task appTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return fmt.Errorf("%s: %w", appEnv, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	calm := make(chan os.Signal, 1)
	signal.Notify(calm, world.Calm)
	contend := make(chan struct{})
	go func() {
		<-calm
		close(contend)
	}()
	fence, err := load.OpenFence(task.Fence, keys)
	if err != nil {
		return err
	}
	records, err := os.Create(task.Records)
	if err != nil {
		return err
	}
	err = load.Run(ctx, load.Config{
		Sockets: task.Sockets, Clients: clients, Keys: keys, Seed: task.Seed, TTL: ttl, Force: true, Contend: contend,
		Recorder: history.NewRecorder(task.Name, records), Fence: fence,
	})
	return errors.Join(err, records.Close(), fence.Close())
}
