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
// Proves: rule lone call
func TestPanicInTheCaller(t *testing.T) {
	t.Parallel()
	const inside = "BATCHER_TEST_PANIC"
	inline := Config{Max: 10, Timeout: time.Second, Inline: true}
	mistake := func(context.Context, []string) ([]string, error) { panic("a mistake") }
	answer := func(string, error) {}
	cases := map[string]func(){
		"do": func() {
			_ = New(Config{Max: 10, Timeout: time.Second}, key, mistake, nil).Do(context.Background(), "a", answer)
		},
		"inline": func() { _ = New(inline, key, mistake, nil).Submit(context.Background(), "a", answer) },
		"inline together": func() {
			_ = New(inline, key, mistake, nil).SubmitAll([]Submission[string, string]{{Ctx: context.Background(), Item: "a", Done: answer}})
		},
		"inline alone": func() {
			l := New(inline, key, mistake, nil)
			l.Alone(func(context.Context, string) (string, error) { panic("a mistake") })
			_ = l.Submit(context.Background(), "a", answer)
		},
		"inline answer": func() {
			echo := func(_ context.Context, items []string) ([]string, error) { return items, nil }
			_ = New(inline, key, echo, nil).Submit(context.Background(), "a", func(string, error) { panic("a mistake") })
		},
	}
	if name := os.Getenv(inside); name != "" {
		defer os.Exit(0)
		defer func() { _ = recover() }()
		cases[name]()
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range cases {
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inside+"="+name)
		out, err := cmd.CombinedOutput()
		if _, failed := errors.AsType[*exec.ExitError](err); !failed {
			t.Errorf("%s: the process goes on: %v\n%s", name, err, out)
			continue
		}
		for _, want := range []string{"panic: ", "a mistake", "TestPanicInTheCaller.func"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: nothing is said of %q:\n%s", name, want, out)
			}
		}
	}
}
