package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// TestPorcupineAgrees: porcupine, which tries all orders, accepts what the model accepts,
// and nothing else: of histories that were right before something in them was changed, and
// of any.
func TestPorcupineAgrees(t *testing.T) {
	for name, draw := range map[string]func(t *rapid.T) []history.Op{"almost right": almostRight, "any": anyhow} {
		t.Run(name, func(t *testing.T) {
			verdicts := make(map[bool]int)
			compare := func(t *rapid.T) {
				ops := draw(t)
				slices.SortStableFunc(ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
				h := arrange(ops, DefaultRules())
				for _, k := range h.keys {
					accepted := h.chain(k).wrong() == nil
					if want := porcupine.CheckOperations(lockModel(), h.steps(k, 0, len(k.terms))); accepted != want {
						var text strings.Builder
						for _, op := range ops {
							text.WriteString("\n" + describe(op))
						}
						t.Fatalf("accepted: %t, by porcupine: %t%s", accepted, want, text.String())
					}
					verdicts[accepted]++
				}
			}
			rapid.Check(t, func(t *rapid.T) {
				for range 10 {
					compare(t)
				}
			})
			if t.Logf("%v", verdicts); verdicts[true] == 0 || verdicts[false] == 0 {
				t.Errorf("all of a kind: %v", verdicts)
			}
		})
	}
}

// almostRight are histories with times and outcomes that are a little different.
func almostRight(t *rapid.T) []history.Op {
	ops := simulate(t).ops
	for range rapid.IntRange(0, 6).Draw(t, "changes") {
		op := &ops[rapid.IntRange(0, len(ops)-1).Draw(t, "which")]
		switch rapid.IntRange(0, 2).Draw(t, "what") {
		case 0:
			op.Call -= rapid.Int64Range(0, 8*step1).Draw(t, "earlier")
		case 1:
			if op.Return != 0 {
				op.Return = max(op.Call, op.Return+rapid.Int64Range(-12*step1, 8*step1).Draw(t, "later"))
			}
		default:
			switch {
			case op.Kind == history.Get && op.Outcome == history.Free, op.Kind == history.Confirm && op.Outcome == history.NotHeld:
				op.Outcome = history.Held
			case op.Kind == history.Get:
				op.Outcome = history.Free
			case op.Kind == history.Confirm:
				op.Outcome = history.NotHeld
			default:
			}
		}
	}
	return ops
}

// anyhow are a few operations of all kinds, at times that are often the same.
func anyhow(t *rapid.T) (ops []history.Op) {
	const longest = 14
	when := func(op history.Op) history.Op {
		from := rapid.Int64Range(1, longest).Draw(t, "from")
		op.ID, op.Process, op.Session, op.Key = fmt.Sprint("x-", len(ops)), "app", fmt.Sprint(op.Token), "k"
		op.Call, op.Return = from, rapid.Int64Range(from, longest).Draw(t, "to")
		return op
	}
	grants := rapid.IntRange(0, 4).Draw(t, "grants")
	for i := range grants {
		op := when(history.Op{Kind: history.Acquire, Outcome: history.Granted, Token: int64(i + 1), Wait: -1})
		op.Until = rapid.Int64Range(op.Return, longest).Draw(t, "until")
		ops = append(ops, op)
	}
	for range rapid.IntRange(0, 6).Draw(t, "others") {
		op := rapid.SampledFrom([]history.Op{
			{Kind: history.Release, Outcome: history.Done},
			{Kind: history.Release, Outcome: history.NotHeld},
			{Kind: history.Release},
			{Kind: history.Confirm, Outcome: history.Held},
			{Kind: history.Confirm, Outcome: history.NotHeld},
			{Kind: history.Lost},
			{Kind: history.Get, Outcome: history.Free},
			{Kind: history.Get, Outcome: history.Held},
			{Kind: history.Acquire, Outcome: history.Held},
			{Kind: history.Acquire, Outcome: history.Held, Cached: true},
			{Kind: history.Force, Outcome: history.Done},
			{Kind: history.Drop},
		}).Draw(t, "what")
		if op.Kind != history.Get && op.Kind != history.Acquire && op.Kind != history.Force {
			op.Token = rapid.Int64Range(1, int64(grants+1)).Draw(t, "token")
		}
		op = when(op)
		switch {
		case op.Kind == history.Drop:
			op.Key = ""
		case op.Kind == history.Confirm && op.Outcome == history.Held:
			op.Until = op.Return
		default:
		}
		ops = append(ops, op)
	}
	return ops
}

// TestACrowd: where many were refused while nobody can tell when exactly the lock changed
// hands, all that is right is accepted, and one wrong answer is refused and named, in a
// moment. Each of these refusals can stand at two places or more, and porcupine tried all
// ways to place them.
func TestACrowd(t *testing.T) {
	const rounds, refused = 100, 60
	var wrong string // the answer in the middle
	// Each round: one has the lock and releases it slowly, the next one waits; meanwhile
	// somebody sees it free.
	crowd := func(seenFree int64) (ops []history.Op) {
		ms := int64(time.Millisecond)
		add := func(op history.Op, from, to int64) {
			op.ID, op.Process, op.Key = fmt.Sprint("x-", len(ops)+1), "app", "k"
			op.Call, op.Return = (10_000+from)*ms, (10_000+to)*ms
			if op.Until != 0 {
				op.Until += op.Return
			}
			ops = append(ops, op)
		}
		for i := range int64(rounds) {
			from, session := 1000*i, fmt.Sprint("s", i)
			free := int64(500)
			if i == rounds/2 {
				free = seenFree
				wrong = fmt.Sprint("x-", len(ops)+3)
			}
			add(history.Op{Session: session, Kind: history.Acquire, Outcome: history.Granted, Token: i + 1, Until: 5000 * ms, Wait: -1}, from-590, from+2)
			add(history.Op{Session: session, Kind: history.Release, Outcome: history.Done, Token: i + 1}, from+400, from+1000)
			add(history.Op{Kind: history.Get, Outcome: history.Free}, from+free, from+free+1)
			for j := range int64(refused) {
				add(history.Op{Kind: history.Acquire, Outcome: history.Held}, from+420+j, from+1100+j)
			}
		}
		slices.SortStableFunc(ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
		return ops
	}
	if got := model(arrange(crowd(500), DefaultRules())); len(got) > 0 {
		t.Error(got)
	}
	got := model(arrange(crowd(390), DefaultRules()))
	if len(got) != 1 || !slices.ContainsFunc(got[0].Ops, func(op history.Op) bool { return op.ID == wrong }) {
		t.Errorf("free, before it was released: %v", got)
	}
}
