package pgtest

import (
	"os/exec"
	"runtime"
	"testing"
)

// A goroutine that ends its thread ends no program that runs meanwhile.
func TestToolsOutliveOtherThreads(t *testing.T) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
				}()
				<-ended
			}
		}
	}()
	defer close(done)
	for range 3 {
		cmd := exec.Command("sleep", "0.2")
		cmd.SysProcAttr = attributes(nil)
		if out, err := toItsEnd(cmd); err != nil {
			t.Errorf("%v %s", err, out)
		}
	}
}
