package batcher

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A panic of an operation ends the process, also where its caller carries it out and
// would survive that, as a server's calls do. Else what the operation did would stay
// unknown, its item without an answer, and the lane would take nothing up again.
func TestPanicDuringDo(t *testing.T) {
	t.Parallel()
	const inside = "BATCHER_TEST_PANIC"
	if os.Getenv(inside) != "" {
		defer os.Exit(0)
		defer func() { _ = recover() }()
		flush := func(context.Context, []string) ([]string, error) { panic("a mistake") }
		_ = New(Config{Max: 10, Timeout: time.Second}, key, flush, nil).Do(context.Background(), "a", func(string, error) {})
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		t.Fatalf("the process goes on: %v\n%s", err, out)
	}
	for _, want := range []string{"panic: ", "a mistake", "TestPanicDuringDo.func"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nothing is said of %q:\n%s", want, out)
		}
	}
}
