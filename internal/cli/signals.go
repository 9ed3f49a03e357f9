package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// stopping is how somebody asks a running sidecar to stop.
type stopping struct {
	// stop ends: stop gracefully. Its cause says who asked.
	stop context.Context
	// hurry ends: wait for nobody any more.
	hurry context.Context
}

// onSignals takes the first SIGTERM or SIGINT as stop and the second as hurry; a third ends the process
// the hard way. release restores these two. SIGPIPE is ignored: without a reader of the log only lines
// are lost.
func onSignals(parent context.Context) (s stopping, release func()) {
	stop, cancelStop := context.WithCancelCause(parent)
	hurry, cancelHurry := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGPIPE)
	go func() {
		if sig, asked := <-signals; asked {
			cancelStop(fmt.Errorf("signal: %s", sig))
			<-signals
			signal.Stop(signals)
			cancelHurry()
		}
	}()
	return stopping{stop, hurry}, func() {
		signal.Stop(signals) // nothing is sent after it
		close(signals)
		cancelStop(nil)
		cancelHurry()
	}
}
