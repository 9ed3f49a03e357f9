package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// Recorder collects the operations of one process. Its methods may be called from
// several goroutines.
type Recorder struct {
	process string

	mu   sync.Mutex
	next int
	ops  map[string]Op
	out  io.Writer
	err  error
}

// NewRecorder makes a recorder for a process of that name; no two of a campaign share one,
// restarts included. It also writes to out, if that is not nil, a line for each beginning
// and each end.
func NewRecorder(process string, out io.Writer) *Recorder {
	return &Recorder{process: process, ops: make(map[string]Op), out: out}
}

// Process is the name that it was made with.
func (r *Recorder) Process() string { return r.process }

// Begin notes that an operation begins, and returns it with its ID and its Call, unless
// that is set. The call itself is made after that.
func (r *Recorder) Begin(op Op) Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	op.ID = fmt.Sprintf("%s-%d", r.process, r.next)
	op.Process = r.process
	if op.Call == 0 {
		op.Call = Now()
	}
	r.write(op)
	return op
}

// End notes the outcome of an operation that Begin returned, and sets its Return unless
// that is set. One that ended without an answer is not ended here.
func (r *Recorder) End(op Op) {
	now := Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if op.Return == 0 {
		op.Return = now
	}
	r.write(op)
}

// Add notes what has no duration, or is over.
func (r *Recorder) Add(op Op) {
	op = r.Begin(op)
	if op.Return == 0 {
		op.Return = op.Call
	}
	r.End(op)
}

func (r *Recorder) write(op Op) {
	r.ops[op.ID] = op
	if r.out == nil || r.err != nil {
		return
	}
	line, err := json.Marshal(op)
	if err == nil {
		_, err = r.out.Write(append(line, '\n')) // in one piece, so that a kill leaves whole lines
	}
	r.err = err
}

// Ops are all operations so far in the order of their calls.
func (r *Recorder) Ops() ([]Op, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sorted(r.ops), r.err
}

// Read reads what recorders have written, and puts it together. The last line of a
// process may be broken off, others may not.
func Read(files ...io.Reader) ([]Op, error) {
	all := make(map[string]Op)
	for _, f := range files {
		if err := readInto(all, f); err != nil {
			return nil, err
		}
	}
	return sorted(all), nil
}

func readInto(all map[string]Op, f io.Reader) error {
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		switch {
		case err == io.EOF: // nothing, or a line that was broken off
			return nil
		case err != nil:
			return err
		}
		var op Op
		if err := json.Unmarshal(bytes.TrimSpace(line), &op); err != nil {
			return fmt.Errorf("history: %q: %w", line, err)
		}
		all[op.ID] = op
	}
}

// WriteAll writes a history that [Read] reads.
func WriteAll(w io.Writer, ops []Op) error {
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	for _, op := range ops {
		if err := enc.Encode(op); err != nil {
			return err
		}
	}
	return b.Flush()
}

func sorted(all map[string]Op) []Op {
	ops := make([]Op, 0, len(all))
	for _, op := range all {
		ops = append(ops, op)
	}
	slices.SortFunc(ops, func(a, b Op) int {
		if a.Call != b.Call {
			return int(min(1, max(-1, a.Call-b.Call)))
		}
		return strings.Compare(a.ID, b.ID)
	})
	return ops
}
