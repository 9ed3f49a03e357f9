package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestTimesAreCountedWithin2Percent(t *testing.T) {
	for d := time.Duration(1); d < 30*time.Minute; d += d/7 + 1 {
		got := middle(step(d))
		if math.Abs(float64(got-d)) > max(0.02*float64(d), 0.5) {
			t.Fatalf("%d ns is told as %d ns", d, got)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var h, other histogram
	if got := h.quantile(0.5); got != 0 {
		t.Fatalf("the median of nothing: %s", got)
	}
	for i := range 1000 { // 1 to 1,000 us, in two parts
		of := &h
		if i%2 == 0 {
			of = &other
		}
		of.note(time.Duration(i+1) * time.Microsecond)
	}
	h.add(&other)
	for part, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		if got := h.quantile(part); math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("quantile %v: %s, want %s", part, got, want)
		}
	}
}

func TestServeRunsWhatItIsTold(t *testing.T) {
	in, tell := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	calls := make([]int64, 3)
	workers := make([]func() error, len(calls))
	for i := range workers {
		workers[i] = func() error { calls[i]++; return nil }
	}
	go func() {
		ended <- Serve(in, out, workers)
		_ = out.Close()
	}()
	lines := bufio.NewScanner(said)
	if !lines.Scan() || lines.Text() != Ready {
		t.Fatalf("it said %q first", lines.Text())
	}
	total := int64(0)
	for range 2 {
		_, _ = io.WriteString(tell, "2000000\n")
		var r Result
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &r) != nil {
			t.Fatalf("no result: %q", lines.Text())
		}
		if r.Elapsed < 2*time.Millisecond || r.Operations == 0 || r.P99 < r.Median {
			t.Fatalf("a run of 2 ms: %+v", r)
		}
		total += r.Operations
	}
	_ = tell.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if sum := calls[0] + calls[1] + calls[2]; sum != total || min(calls[0], calls[1], calls[2]) == 0 {
		t.Fatalf("%v operations, told as %d", calls, total)
	}
}

func TestAFailureEndsIt(t *testing.T) {
	broken := errors.New("broken")
	var out strings.Builder
	err := Serve(strings.NewReader("1000000\n"), &out, []func() error{func() error { return broken }, func() error { return nil }})
	if !errors.Is(err, broken) || out.String() != Ready+"\n" {
		t.Fatalf("%v, and it said %q", err, &out)
	}
}
