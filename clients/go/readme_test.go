package locksidecar_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

// The examples of README.md.

type report struct{ ended chan error }

func (r *report) Wait() error { return <-r.ended }

// startReport returns when the report has its lock.
func startReport(client *locksidecar.Client) *report {
	r, begun := &report{make(chan error, 1)}, make(chan struct{})
	go func() {
		r.ended <- client.Do(context.Background(), "report:daily", func(ctx context.Context, _ *locksidecar.Lock) error {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-begun
	return r
}

func TestTheReportEndsWhenItsLockIsLost(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	report := startReport(sidecar.Client()) // holds the lock report:daily
	sidecar.Lose(t, "report:daily")         // or Kill, Hang, Resume, Stop, Run
	if err := report.Wait(); !errors.Is(err, locksidecar.ErrLockLost) {
		t.Fatal(err)
	}
}

func TestOneLock(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	t.Setenv("LOCKSIDECAR_SOCKET", sidecar.Socket)
	ctx, tokens := t.Context(), make(chan int64, 1)
	write := func(_ context.Context, token int64) error {
		tokens <- token
		return nil
	}
	client := locksidecar.New(locksidecar.Config{}) // one for each process; goroutines share it
	defer client.Close()                            //nolint:errcheck // as an app does

	err := client.Do(ctx, "report:daily", func(ctx context.Context, lock *locksidecar.Lock) error {
		return write(ctx, lock.Token())
	}, locksidecar.Wait(5*time.Second))
	if err != nil || <-tokens == 0 {
		t.Fatal(err)
	}
}

func TestFirstScreen(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	t.Setenv("LOCKSIDECAR_SOCKET", sidecar.Socket)
	ctx := t.Context()
	err := locksidecar.New(locksidecar.Config{}).Do(ctx, "report:daily", func(_ context.Context, lock *locksidecar.Lock) error {
		fmt.Println("fencing token", lock.Token())
		return nil
	})
	ok(t, err)
	sidecar.Stop() // ends the goroutines of the client
}

// Each line of Go in README.md, and in that of the repository, stands in this file, where it runs.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	ok(t, err)
	first, err := os.ReadFile("../../README.md")
	ok(t, err)
	readme = append(readme, first...)
	here, err := os.ReadFile("readme_test.go")
	ok(t, err)
	lines := 0
	for _, block := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "import ")
			if strings.HasPrefix(line, "//") { // how to install it
				continue
			}
			lines++
			if !strings.Contains(string(here), line) {
				t.Errorf("it does not run: %s", line)
			}
		}
	}
	if lines < 15 {
		t.Errorf("%d lines", lines)
	}
}
