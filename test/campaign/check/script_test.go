package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// script reads a history that was written by hand. Each line is
//
//	who what from-to [outcome] [more…]
//
// with times in milliseconds from 10 s on (0- has no answer), who a client that has a
// session of its own name, and more: t7 the token, u90 until when it may be believed,
// w-1 wait_ms (else 0), s- no session, r1 repeated once, ka the key (else k), g1 the group, n1 the sidecar,
// c answered from the cache, l7:x-1@a#p a place in line, for the acquire in the first line,
// under the lease a, of the attempt p (or none is named), ap the attempt that has the key under
// t7, o no holder was named, m shared, m3 with that limit, q2 has slot 1, h2 so many holders, d7:x-1 a
// place whose lease has expired, b30 up to when the line before was seen.
func script(t *testing.T, text string) (ops []history.Op) {
	t.Helper()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		op := history.Op{ID: fmt.Sprint("x-", len(ops)+1), Process: "app", Session: words[0], Kind: history.Kind(words[1]), Key: "k"}
		from, to, _ := strings.Cut(words[2], "-")
		op.Call = at(t, from)
		if to != "" {
			op.Return = at(t, to)
		}
		switch op.Kind {
		case history.Drop, history.Fault, history.Ended, history.Unpromised, history.Forgets, history.Replaced, history.Quiet, history.Slow, history.Keeps:
			op.Key = ""
		}
		for _, word := range words[3:] {
			more(t, &op, word)
		}
		ops = append(ops, op)
	}
	slices.SortStableFunc(ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
	return ops
}

func more(t *testing.T, op *history.Op, word string) {
	t.Helper()
	switch outcome := history.Outcome(word); outcome {
	case history.Granted, history.Held, history.Timeout, history.Refused, history.Done, history.NotHeld, history.Free, history.Stale, history.Mismatch:
		op.Outcome = outcome
		return
	}
	rest := word[1:]
	switch word[0] {
	case 't':
		op.Token = number(t, rest)
	case 'u':
		op.Until = at(t, rest)
	case 'w':
		op.Wait = number(t, rest)
	case 's':
		op.Session = strings.TrimPrefix(rest, "-")
	case 'k':
		op.Key = rest
	case 'r':
		op.Repeats = int(number(t, rest))
	case 'g':
		op.Group = rest
	case 'n':
		op.Sidecar = int(number(t, rest))
	case 'p':
		op.Process, op.Whose = rest, rest
	case 'c':
		op.Cached = true
	case 'o':
		op.Unnamed = true
	case 'a':
		op.Attempt = rest
	case 'b':
		op.Before = at(t, rest)
	case 'm':
		op.Shared = true
		if rest != "" {
			op.Limit = int(number(t, rest))
		}
	case 'q':
		op.Slot = int(number(t, rest))
	case 'h':
		op.Holders = int(number(t, rest))
	case 'l', 'd':
		place, id, _ := strings.Cut(rest, ":")
		id, attempt, _ := strings.Cut(id, "#")
		id, lease, _ := strings.Cut(id, "@")
		op.Line = append(op.Line, history.Place{Number: number(t, place), ID: id, Lease: lease, Attempt: attempt, Dead: word[0] == 'd'})
	default:
		t.Fatalf("what is %q?", word)
	}
}

func at(t *testing.T, ms string) int64 { return (10_000 + number(t, ms)) * int64(time.Millisecond) }

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rules are the rules that were broken.
func rules(r Report) (broken []string) {
	for _, v := range r.Violations {
		if !slices.Contains(broken, v.Rule) {
			broken = append(broken, v.Rule)
		}
	}
	slices.Sort(broken)
	return broken
}
