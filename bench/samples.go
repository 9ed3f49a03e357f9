package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// sample is a stack of a profile, the innermost frame first, as "function file:line",
// and what was seen in it.
type sample struct {
	stack []string
	value float64
}

// readProfile reads a profile by `go tool pprof -traces`. index is which of its values
// is meant, such as "cpu" or "alloc_space", unit that of its numbers.
func readProfile(ctx context.Context, path, index, unit string) ([]sample, error) {
	args := []string{"tool", "pprof", "-traces", "-lines", "-sample_index=" + index}
	if unit != "" {
		args = append(args, "-unit="+unit)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, path)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof %s: %w\n%s", path, err, said.Bytes())
	}
	samples, err := parseTraces(out, unit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return samples, nil
}

// parseTraces reads what -traces prints: after a head, stacks between lines of dashes,
// the first line of each with the value.
func parseTraces(text []byte, unit string) (samples []sample, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	begun := false // of the head nothing is wanted
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "-----") {
			begun = true
			samples = append(samples, sample{})
			continue
		}
		frame := strings.TrimSpace(line)
		if !begun || frame == "" {
			continue
		}
		last := &samples[len(samples)-1]
		if len(last.stack) == 0 {
			value, rest, _ := strings.Cut(frame, " ")
			if strings.HasSuffix(value, ":") { // a label of the sample
				continue
			}
			if last.value, err = strconv.ParseFloat(strings.TrimSuffix(value, unit), 64); err != nil {
				return nil, fmt.Errorf("no value: %q", line)
			}
			frame = strings.TrimSpace(rest)
		}
		last.stack = append(last.stack, strings.TrimSuffix(frame, " (inline)"))
	}
	filled := samples[:0]
	for _, s := range samples {
		if len(s.stack) > 0 {
			filled = append(filled, s)
		}
	}
	return filled, lines.Err()
}
