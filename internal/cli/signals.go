package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// stopping contains the requests to stop this process.
type stopping struct {
	// stop ends when the process must stop gracefully. Its cause is the reason.
	stop context.Context
	// hurry ends when the process must not wait any longer.
	hurry context.Context
}

// ignoreHangup is for servers: the default action of SIGHUP is an end without the stop, and they have nothing to reload.
func ignoreHangup() { signal.Ignore(syscall.SIGHUP) }

// onSignals maps the first SIGTERM or SIGINT to stop and the second to hurry; a third kills the process. release
// restores these two signals. SIGPIPE is ignored, so that without a reader of the log only lines are lost.
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
