package cli

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that `run` passes on to CMD.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// heeded omits signals that this process ignores from its start (nohup, &), because CMD inherits that.
func heeded(all []os.Signal) []os.Signal {
	var out []os.Signal
	for _, sig := range all {
		if !signal.Ignored(sig) {
			out = append(out, sig)
		}
	}
	return out
}

// notifyHeeded is signal.Notify for those that are heeded. If there are none, it takes none, while Notify would take all.
func notifyHeeded(c chan<- os.Signal, all ...os.Signal) {
	for _, sig := range heeded(all) {
		signal.Notify(c, sig)
	}
}

// parseSignal accepts TERM, SIGTERM, term or 15. An empty text means no signal.
func parseSignal(text string) (syscall.Signal, error) {
	name := strings.ToUpper(text)
	if name == "" {
		return 0, nil
	}
	if n, err := strconv.Atoi(name); err == nil {
		if unix.SignalName(syscall.Signal(n)) != "" {
			return syscall.Signal(n), nil
		}
	} else if sig := unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, errors.New("allowed: the name or the number of a signal, such as TERM, INT or USR1")
}
