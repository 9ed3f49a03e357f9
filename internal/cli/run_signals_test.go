package cli

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
)

func TestWithoutHeededSignalsNoneAreTaken(t *testing.T) {
	signal.Ignore(syscall.SIGUSR2)
	defer signal.Reset(syscall.SIGUSR2)
	taken, others := make(chan os.Signal, 1), make(chan os.Signal, 1)
	notifyHeeded(taken, syscall.SIGUSR2)
	defer signal.Stop(taken)
	signal.Notify(others, syscall.SIGWINCH)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	<-others
	signal.Stop(others) // waits until all channels have the signal
	if len(taken) > 0 {
		t.Errorf("took %s", <-taken)
	}
}
