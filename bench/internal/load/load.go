// Package load is the process that loads a server under measurement. It has none
// of the server's time on its account, and tells its own.
//
// It obeys the bench by its standard input and output: it says "ready" once its
// workers are prepared; each line that it reads is the length of a run in
// nanoseconds, each that it then writes a Result. It ends with its input, and only
// then its workers' connections do.
package load

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Ready is what a load process says first.
const Ready = "ready"

// Result is one run.
type Result struct {
	Operations int64         `json:"operations"`
	Elapsed    time.Duration `json:"elapsed_ns"`
	// Median and P99 are how long an operation took, each to within 2%.
	Median time.Duration `json:"median_ns"`
	P99    time.Duration `json:"p99_ns"`
	// CPU is the processor time of this process.
	CPU time.Duration `json:"cpu_ns"`
}

// Serve does what in says, on out. Each worker is one operation that runs again and
// again, at the same time as those of the others.
func Serve(in io.Reader, out io.Writer, workers []func() error) error {
	fmt.Fprintln(out, Ready)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		length, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		result, err := run(workers, time.Duration(length))
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		if err := json.NewEncoder(out).Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}

// run has every worker begin operations until the time is over.
func run(workers []func() error, length time.Duration) (Result, error) {
	var (
		mu      sync.Mutex
		all     histogram
		failure error
		wg      sync.WaitGroup
	)
	before, err := processorTime()
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	end := began.Add(length)
	for _, operation := range workers {
		wg.Go(func() {
			var mine histogram
			err := mine.fill(operation, end)
			mu.Lock()
			defer mu.Unlock()
			all.add(&mine)
			if err != nil && failure == nil {
				failure = err
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	after, err := processorTime()
	if failure != nil {
		err = failure
	}
	return Result{
		Operations: all.count(), Elapsed: elapsed, CPU: after - before,
		Median: all.quantile(0.5), P99: all.quantile(0.99),
	}, err
}

// fill repeats an operation until the time is over, and does it at least once.
func (h *histogram) fill(operation func() error, end time.Time) error {
	for now := time.Now(); ; {
		if err := operation(); err != nil {
			return err
		}
		then := time.Now()
		h.note(then.Sub(now))
		if now = then; now.After(end) {
			return nil
		}
	}
}

// processorTime is what this process has used.
func processorTime() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
