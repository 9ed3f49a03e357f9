package check

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// TestSimulatedHistories: the history of a correct lock is accepted, whatever its clients do and whenever answers
// arrive. With one wrong answer, it is not.
func TestSimulatedHistories(t *testing.T) {
	for name, mutate := range mutations {
		t.Run(name, func(t *testing.T) {
			applied, kept := 0, 0
			rapid.Check(t, func(t *rapid.T) {
				s := simulate(t)
				right := All(s.ops, DefaultRules())
				if err := right.Err(); err != nil {
					t.Fatalf("a right history is refused: %v\n%s", err, s)
				}
				kept += right.Counts.Kept
				ops, ok := mutate(slices.Clone(s.ops))
				if !ok {
					return // there is nothing of that kind in it
				}
				applied++
				slices.SortStableFunc(ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
				if All(ops, DefaultRules()).Err() == nil {
					t.Fatalf("accepted\n%s", s)
				}
			})
			t.Logf("%d histories refused; %d times a kept key was taken", applied, kept)
			if applied == 0 || kept == 0 {
				t.Error("there was none to change, or no key was kept")
			}
		})
	}
}

// sim is a lock and its clients. Its time makes a step for each thing that happens to
// the lock; calls and answers lie around it.
type sim struct {
	t       *rapid.T
	now     int64
	ops     []history.Op
	clients []simClient
	queue   []int // clients
	places  []history.Place
	token   int64
	holder  int // a client, or nobody or somebody unseen
	expires int64
	ids     int
	// Clients are those of two sidecars, the second of which keeps keys.
	keeps    bool
	kept     bool  // it keeps the key
	until    int64 // so long, if nobody wants it elsewhere
	row      int64 // the token that the store knows
	again    bool  // the last grant was there, and ended by a release: the next one there can be kept
	keepable bool  // so can the present one
}

// keeper is the sidecar that keeps keys, simKeep for how long.
const (
	keeper  = 1
	simKeep = 8 * step1
)

func (s *sim) sidecar(c int) int { return c % 2 }

// takes reports whether a client gets the key from its sidecar, which keeps it.
func (s *sim) takes(c int) bool { return s.kept && s.sidecar(c) == keeper }

// shows reports whether the key shows as held to a client.
func (s *sim) shows(c int) bool { return s.holder != nobody || s.kept && s.sidecar(c) != keeper }

type simClient struct {
	free  int64 // when it can make a call
	waits int   // index of the acquire under way, or -1
	token int64 // the last that it had, and whose
	links int
	until int64
}

const (
	nobody = -1
	unseen = -2

	step1  = 1_000_000 // a step of the time, in ns
	simTTL = 20 * step1
)

func (s *sim) String() (text string) {
	for _, op := range s.ops {
		text += describe(op) + "\n"
	}
	return text
}

func simulate(t *rapid.T) *sim {
	s := &sim{t: t, now: 1000 * step1, holder: nobody, keeps: rapid.Bool().Draw(t, "keeps")}
	if s.keeps {
		s.ops = append(s.ops, history.Op{ID: "keeps", Kind: history.Keeps, Sidecar: keeper, Return: 1, Until: simKeep})
	}
	for range rapid.IntRange(2, 5).Draw(t, "clients") {
		s.clients = append(s.clients, simClient{waits: -1})
	}
	for range rapid.IntRange(10, 120).Draw(t, "steps") {
		s.now += step1
		if s.holder != nobody && s.now > s.expires {
			s.frees()
		}
		switch {
		case !s.kept:
		case len(s.queue) > 0 && rapid.Bool().Draw(t, "recalled"):
			s.frees()
		case s.now > s.until && len(s.queue) == 0:
			s.kept = false
		}
		s.now += step1
		if !s.keeps || !rapid.Bool().Draw(t, "again") || !s.comesAgain() {
			s.does(rapid.IntRange(0, len(s.clients)-1).Draw(t, "client"))
		}
	}
	slices.SortStableFunc(s.ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
	return s
}

// comesAgain lets a client of the sidecar that keeps keys acquire or release, if it can.
func (s *sim) comesAgain() bool {
	const c = keeper
	sc := &s.clients[c]
	switch {
	case sc.waits >= 0 || sc.free > s.now:
		return false
	case s.holder == c:
		s.releases(c, 3)
		return true
	case !s.shows(c):
		s.acquires(c, 9)
		return true
	}
	return false
}

// op is an operation of a client that takes effect now.
func (s *sim) op(c int, kind history.Kind) history.Op {
	s.ids++
	sc := &s.clients[c]
	op := history.Op{
		ID: fmt.Sprint("x-", s.ids), Process: "app", Client: c, Sidecar: s.sidecar(c), Session: fmt.Sprint(c, ".", sc.links), Kind: kind, Key: "k",
		Call: max(sc.free, s.now-rapid.Int64Range(0, 5*step1).Draw(s.t, "before")),
	}
	op.Return = s.now + rapid.Int64Range(0, 5*step1).Draw(s.t, "after")
	sc.free = op.Return + 1
	return op
}

// does lets a client do something.
func (s *sim) does(c int) {
	sc := &s.clients[c]
	what := rapid.IntRange(0, 9).Draw(s.t, "what")
	switch {
	case sc.waits >= 0 || sc.free > s.now:
	case what < 2 && sc.token != 0:
		s.asks(c)
	case s.holder == c && what < 5:
		s.releases(c, what)
	case s.holder == c && what < 6:
		s.drops(c)
	case what < 3:
		op := s.op(c, history.Get)
		op.Outcome = history.Free
		if s.shows(c) {
			op.Outcome = history.Held
		}
		s.ops = append(s.ops, op)
	case what < 4:
		if len(s.places) > 1 {
			line := history.Op{ID: "line", Kind: history.Line, Key: "k", Call: s.now, Return: s.now, Line: slices.Clone(s.places)}
			if s.keeps && (s.holder >= 0 || s.kept) {
				line.Token = s.row
			}
			s.ops = append(s.ops, line)
		}
	case s.holder == c:
		op := s.op(c, history.Write)
		op.Call, op.Return, op.Token, op.Outcome = s.now, s.now, sc.token, history.Done
		if s.now < sc.until {
			s.ops = append(s.ops, op)
		}
	default:
		s.acquires(c, what)
	}
}

func (s *sim) acquires(c, what int) {
	op := s.op(c, history.Acquire)
	switch {
	case what == 4: // its answer is lost, whatever became of it
		op.Return = 0
		if !s.shows(c) && rapid.Bool().Draw(s.t, "carried out") {
			s.chooses(c)
			s.holder, s.expires = unseen, s.now+simTTL
		}
		s.clients[c].links++
	case !s.shows(c):
		s.grants(c, &op)
	case what < 6:
		op.Outcome = history.Held
	default:
		op.Wait = -1
		s.clients[c].waits = len(s.ops)
		s.queue = append(s.queue, c)
		s.places = append(s.places, history.Place{Number: int64(s.ids), ID: op.ID})
	}
	s.ops = append(s.ops, op)
}

// grants gives the lock to a client, now.
func (s *sim) grants(c int, op *history.Op) {
	s.chooses(c)
	s.holder, s.expires = c, s.now+simTTL
	op.Outcome, op.Token, op.Until = history.Granted, s.token, s.now+simTTL-1
	s.clients[c].token, s.clients[c].until = s.token, op.Until
}

// chooses the token of the next grant: the next one where a key is kept, and a far one in the store, because nearer ones are the
// sidecar's.
func (s *sim) chooses(c int) {
	switch {
	case s.takes(c):
		s.token++
	case s.keeps:
		s.token += 256 + rapid.Int64Range(0, 2).Draw(s.t, "token")
		s.row, s.keepable = s.token, s.again && s.sidecar(c) == keeper && len(s.queue) == 0
	default:
		s.token += rapid.Int64Range(1, 3).Draw(s.t, "token")
	}
	s.kept, s.again = false, false
}

// frees ends a term: the lock is free then, or hands it to the first of the queue.
func (s *sim) frees() {
	s.holder, s.kept = nobody, false
	if len(s.queue) == 0 {
		return
	}
	c := s.queue[0]
	s.queue, s.places = s.queue[1:], s.places[1:]
	s.now += step1
	op := &s.ops[s.clients[c].waits]
	op.Return = s.now + rapid.Int64Range(0, 5*step1).Draw(s.t, "after")
	s.clients[c].free, s.clients[c].waits = op.Return+1, -1
	s.grants(c, op)
}

func (s *sim) releases(c, what int) {
	op := s.op(c, history.Release)
	op.Token = s.clients[c].token
	frees := true
	if op.Outcome = history.Done; what == 4 {
		op.Outcome, op.Return = history.Unknown, 0
		frees = rapid.Bool().Draw(s.t, "carried out")
	}
	s.ops = append(s.ops, op)
	if !frees {
		return
	}
	if s.keeps && s.keepable && s.sidecar(c) == keeper && len(s.queue) == 0 {
		s.holder, s.kept, s.until = nobody, true, s.now+simKeep
		return
	}
	s.frees()
	s.again = s.holder == nobody && s.sidecar(c) == keeper
}

func (s *sim) drops(c int) {
	op := s.op(c, history.Drop)
	op.Key = ""
	s.ops = append(s.ops, op)
	s.clients[c].links++
	s.clients[c].token = 0
	s.frees()
}

// asks lets a client ask whether it still has what it had.
func (s *sim) asks(c int) {
	sc := &s.clients[c]
	op := s.op(c, history.Confirm)
	op.Token, op.Outcome = sc.token, history.NotHeld
	if s.holder == c {
		s.expires = s.now + simTTL
		op.Outcome, op.Until = history.Held, s.expires-1
		sc.until = op.Until
	}
	s.ops = append(s.ops, op)
}
