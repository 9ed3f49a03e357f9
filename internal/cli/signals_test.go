package cli

import (
	"os"
	"syscall"
	"testing"
)

// Signals, for real: the first stops, the second hurries.
func TestSignals(t *testing.T) {
	s, release := onSignals(t.Context())
	defer release()
	self := os.Getpid()
	if err := syscall.Kill(self, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.stop.Done()
	if s.hurry.Err() != nil {
		t.Error("one signal is no hurry")
	}
	if err := syscall.Kill(self, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-s.hurry.Done()
}

func TestReleasedSignalsLeaveNothing(t *testing.T) {
	s, release := onSignals(t.Context())
	release()
	if s.stop.Err() == nil || s.hurry.Err() == nil {
		t.Error("contexts are left open")
	}
}
