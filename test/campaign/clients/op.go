package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

// Kind is what a program asked its client for, or noted.
type Kind string

// The calls and notes of programs.
const (
	// Acquire is one of the ways to get locks; Form says which.
	Acquire Kind = "acquire"
	// Enter is an acquire of a lock that the caller holds already, which is reentrant; Leave is its release.
	Enter Kind = "enter"
	Leave Kind = "leave"
	// Release is the release of what Hold got.
	Release Kind = "release"
	// Lost is the news that what Hold got is lost.
	Lost Kind = "lost"
	// Killed says that the program killed its child with that Pid.
	Killed Kind = "killed"
	// Quiet says that all calls of a program have ended, and what it holds.
	Quiet Kind = "quiet"
	// Again is a use of one of the program's objects after all that has happened.
	Again Kind = "again"
	// Stored is what sidecars say that is held; Texts say by which call of which program.
	Stored Kind = "stored"
)

// through is the Form of a lock that a program holds until it is lost, also while its sidecar is frozen.
const through = "through"

// Outcome is how a call ended for the program.
type Outcome string

// How calls end.
const (
	Unknown   Outcome = ""          // it has not ended
	Granted   Outcome = "granted"   // Acquire, Enter
	Timeout   Outcome = "timeout"   // Acquire: it has not got it in its time
	Done      Outcome = "done"      // Release, Leave, Again
	Cancelled Outcome = "cancelled" // by the program: with its own error, which Error does not name
	Failed    Outcome = "failed"    // with Error
)

// Op is a call of a program on its client. It is written twice: when it begins, and when it has ended.
type Op struct {
	ID string `json:"id"`
	// App is the name of the program's start, such as app2-1; Program what it is.
	App     string `json:"app"`
	Program string `json:"program"`
	Pid     int    `json:"pid,omitempty"`
	// Sidecar is the index of the sidecar whose client it is.
	Sidecar int  `json:"sidecar"`
	Actor   int  `json:"actor"`
	Kind    Kind `json:"kind"`
	// Form is the way of the API: a block, a mutex, several keys, a semaphore.
	Form string `json:"form,omitempty"`
	// Keys and Tokens are those of an Acquire, a Quiet or a Stored.
	Keys   []string `json:"keys,omitempty"`
	Tokens []int64  `json:"tokens,omitempty"`
	// Limit is that of a semaphore; 0: exclusive.
	Limit int `json:"limit,omitempty"`
	// Wait is how long the call may wait, in ms; -1: for ever.
	Wait int `json:"wait,omitempty"`
	// Cancel is when the program cancelled the call; 0: never.
	Cancel int64 `json:"cancel,omitempty"`
	// Hold is the id of the Acquire whose locks it is about.
	Hold    string  `json:"hold,omitempty"`
	Outcome Outcome `json:"outcome,omitempty"`
	// Error is the class of an error, or its code where the client's errors have codes; Text are its words.
	Error string   `json:"error,omitempty"`
	Text  string   `json:"text,omitempty"`
	Texts []string `json:"texts,omitempty"`
	// Call and Return are by the clock of all histories; Return is 0 if it has not ended.
	Call   int64 `json:"call"`
	Return int64 `json:"return,omitempty"`
}

func (op Op) String() string {
	text := fmt.Sprintf("%s %s %s %s %v", op.ID, op.Program, op.Kind, op.Form, op.Keys)
	if op.Wait != 0 {
		text += fmt.Sprintf(" wait %d ms", op.Wait)
	}
	text += fmt.Sprintf(" (sidecar%d), called %d", op.Sidecar, op.Call)
	if op.Cancel != 0 {
		text += fmt.Sprintf(", cancelled after %s", time.Duration(op.Cancel-op.Call))
	}
	if op.Return != 0 {
		text += fmt.Sprintf(", %s after %s %v", op.Outcome, time.Duration(op.Return-op.Call), op.Tokens)
	}
	if op.Error != "" {
		text += fmt.Sprintf(": %s: %s", op.Error, op.Text)
	}
	return text
}

// Read reads what programs have written, in the order of the calls. The last line of a program may be broken off.
func Read(files ...io.Reader) ([]Op, error) {
	all := make(map[string]Op)
	for _, f := range files {
		for r := bufio.NewReader(f); ; {
			line, err := r.ReadBytes('\n')
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, err
			}
			var op Op
			if err := json.Unmarshal(bytes.TrimSpace(line), &op); err != nil {
				return nil, fmt.Errorf("clients: %q: %w", line, err)
			}
			all[op.ID] = op
		}
	}
	ops := make([]Op, 0, len(all))
	for _, op := range all {
		ops = append(ops, op)
	}
	slices.SortFunc(ops, func(a, b Op) int { return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.ID, b.ID)) })
	return ops, nil
}
