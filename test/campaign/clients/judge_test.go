package clients

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// ms are milliseconds of a story.
const ms = int64(time.Millisecond)

var storyRules = Rules{Timeout: 4 * time.Second, TTL: 2 * time.Second, Slack: time.Second, Told: time.Second, Recovery: 5 * time.Second}

// acquired is a grant of a key to an app, from the call to the answer. Its release needs its id.
func acquired(id, app, key string, token, call, answer int64) Op {
	return Op{
		ID: id, App: app, Program: "py-threads", Kind: Acquire, Form: "with", Keys: []string{key}, Tokens: []int64{token}, Wait: 1000,
		Outcome: Granted, Call: call * ms, Return: answer * ms,
	}
}

// released is the release of what that acquire got.
func released(hold Op, outcome Outcome, call, answer int64) Op {
	return Op{ID: hold.ID + "-released", App: hold.App, Program: hold.Program, Sidecar: hold.Sidecar, Kind: Release, Hold: hold.ID, Outcome: outcome, Call: call * ms, Return: answer * ms}
}

// failed gives an op an error.
func failed(op Op, name string) Op {
	op.Outcome, op.Error, op.Text, op.Tokens = Failed, name, "words", nil
	return op
}

// timedOut is a call without an answer in its time.
func timedOut(op Op) Op {
	op = failed(op, unavailable)
	op.Text = "the sidecar did not answer (timeout)"
	return op
}

// looked is a look at what is held, after programs have said what they hold.
func looked(at int64, keys ...string) Op {
	op := Op{ID: "look", App: "campaign", Kind: Stored, Keys: keys, Outcome: Done, Call: at * ms, Return: at * ms}
	for range keys {
		op.Texts = append(op.Texts, "call a of session app0-1 of sidecar0")
	}
	return op
}

func said(app string, at int64, keys ...string) Op {
	return Op{ID: app + "-quiet", App: app, Program: "py-threads", Kind: Quiet, Keys: keys, Tokens: make([]int64, len(keys)), Outcome: Done, Call: at * ms, Return: at * ms}
}

// during is a fault, from one moment to another.
func during(note string, from, to int64) history.Op {
	return history.Op{Kind: history.Fault, Note: note, Call: from * ms, Return: to * ms}
}

const unavailable = "locksidecar.errors.NoAnswer"

// TestStories: each rule refuses what breaks it, and nothing else; and no rule refuses what is promised.
func TestStories(t *testing.T) {
	a := acquired("a", "app0-1", "k", 1, 0, 10)
	b := acquired("b", "app1-1", "k", 2, 50, 200)
	b.Sidecar = 1
	permit := func(id string, token, from int64) Op {
		op := acquired(id, "app0-1", "s", token, from, from+1)
		op.Limit = 2
		return op
	}
	lost := Op{ID: "a-lost", App: a.App, Program: a.Program, Kind: Lost, Hold: "a", Keys: []string{"k"}, Outcome: Done, Call: 5000 * ms, Return: 5000 * ms}
	lostAt := func(at int64) Op {
		l := lost
		l.Call, l.Return = at*ms, at*ms
		return l
	}
	late := b
	late.Call, late.Return = 2000*ms, 2600*ms
	hung := acquired("h", "app0-1", "k", 0, 0, 0)
	hung.Outcome, hung.Tokens, hung.Wait = Unknown, nil, -1
	cancelled := acquired("c", "app0-1", "k", 0, 0, 0)
	cancelled.Outcome, cancelled.Tokens, cancelled.Wait, cancelled.Cancel, cancelled.Return = Cancelled, nil, -1, 100*ms, 6000*ms
	for name, story := range map[string]struct {
		ops    []Op
		notes  []history.Op
		broken string // the rule; empty: none
	}{
		"one after the other":                     {ops: []Op{a, released(a, Done, 100, 150), b, released(b, Done, 300, 310)}},
		"granted before the release was called":   {ops: []Op{a, released(a, Done, 250, 260), b, released(b, Done, 300, 310)}, broken: "exclusion"},
		"the first is granted when both hold":     {ops: []Op{acquired("a", "app0-1", "k", 1, 0, 210), released(a, Done, 250, 260), b, released(b, Done, 300, 310)}, broken: "exclusion"},
		"granted before the release was answered": {ops: []Op{a, released(a, Done, 100, 9900), b, released(b, Done, 300, 310)}, broken: "time"},
		"not told":                           {ops: []Op{a, late, lost, released(late, Done, 6000, 6001)}, broken: "told"},
		"told in time":                       {ops: []Op{a, lostAt(3000), late, released(late, Done, 6000, 6001)}},
		"its sidecar was frozen":             {ops: []Op{a, late, lost, released(late, Done, 6000, 6001)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}, broken: "clock told"},
		"told after the freeze":              {ops: []Op{a, lost}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}, broken: "clock"},
		"never told of a freeze":             {ops: []Op{a, said("app0-1", 9000)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}, broken: "clock"},
		"told in the freeze":                 {ops: []Op{a, lostAt(2900)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}},
		"a freeze as short as a lease":       {ops: []Op{a, lostAt(3000)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 2900)}},
		"acquired after the freeze":          {ops: []Op{a, lost}, notes: []history.Op{during("freeze-sidecar sidecar0", 0, 4900)}},
		"frozen with its sidecar":            {ops: []Op{a, lost}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900), during("freeze-app app0", 500, 4500)}},
		"a release in the freeze":            {ops: []Op{a, failed(released(a, Failed, 2000, 5000), unavailable)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}},
		"PHP does not ask":                   {ops: []Op{php(a), php(lost)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}},
		"PHP asks":                           {ops: []Op{php(asking(a)), php(lost)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}, broken: "clock"},
		"told while its sidecar was frozen":  {ops: []Op{a, lostAt(1900), late, released(late, Done, 6000, 6001)}, notes: []history.Op{during("freeze-sidecar sidecar0", 100, 4900)}},
		"another's sidecar was frozen":       {ops: []Op{a, late, lost, released(late, Done, 6000, 6001)}, notes: []history.Op{during("freeze-sidecar sidecar2", 100, 4900)}, broken: "told"},
		"the program was frozen":             {ops: []Op{a, late, lost, released(late, Done, 6000, 6001)}, notes: []history.Op{during("freeze-app app0", 100, 4900)}},
		"the program was killed":             {ops: []Op{a, late, released(late, Done, 6000, 6001)}, notes: []history.Op{{Kind: history.Ended, Whose: "app0-1", Call: 100 * ms, Return: 120 * ms}}},
		"a killed program and a live one":    {ops: []Op{a, late, released(late, Done, 6000, 6001)}, notes: []history.Op{{Kind: history.Ended, Whose: "app2-1", Call: 100 * ms, Return: 120 * ms}}, broken: "told"},
		"a child was killed":                 {ops: []Op{child(a), {ID: "kill", App: "app0-1", Program: "py-threads", Kind: Killed, Pid: 7, Outcome: Done, Call: 90 * ms, Return: 95 * ms}, late, released(late, Done, 6000, 6001)}},
		"a later grant with a smaller token": {ops: []Op{a, released(a, Done, 20, 30), acquired("b", "app1-1", "k", 1, 50, 60)}, broken: "tokens"},
		"two permits":                        {ops: []Op{permit("a", 1, 0), permit("b", 2, 5), released(permit("a", 1, 0), Done, 50, 51), released(permit("b", 2, 5), Done, 60, 61)}},
		"three permits of two":               {ops: []Op{permit("a", 1, 0), permit("b", 2, 5), permit("c", 3, 8), released(permit("a", 1, 0), Done, 50, 51), released(permit("b", 2, 5), Done, 60, 61), released(permit("c", 3, 8), Done, 70, 71)}, broken: "permits"},
		"a wait that is too long": {ops: []Op{func() Op {
			op := acquired("a", "app0-1", "k", 0, 0, 6100)
			op.Outcome, op.Tokens = Timeout, nil
			return op
		}()}, broken: "time"},
		"a wait while the program is frozen": {ops: []Op{func() Op {
			op := acquired("a", "app0-1", "k", 0, 0, 6100)
			op.Outcome, op.Tokens = Timeout, nil
			return op
		}()}, notes: []history.Op{during("freeze-app app0", 10, 5000)}},
		"a wait while the machine is slow": {ops: []Op{func() Op {
			op := acquired("a", "app0-1", "k", 0, 0, 6100)
			op.Outcome, op.Tokens = Timeout, nil
			return op
		}()}, notes: []history.Op{{Kind: history.Slow, Call: 0, Return: 2000 * ms}}},
		"a call that never ends":                {ops: []Op{hung}, broken: "time"},
		"a call whose process was killed":       {ops: []Op{hung, said("app1-1", 500)}, notes: []history.Op{{Kind: history.Ended, Whose: "app0-1", Call: 100 * ms, Return: 120 * ms}}},
		"a cancelled call that goes on":         {ops: []Op{cancelled}, broken: "time"},
		"a sidecar that was killed":             {ops: []Op{failed(a, unavailable)}, notes: []history.Op{during("kill-sidecar sidecar0", 0, 5)}},
		"an error of the language":              {ops: []Op{failed(a, "builtins.KeyError")}, notes: []history.Op{during("kill-sidecar sidecar0", 0, 5)}, broken: "error"},
		"an error that says the call was wrong": {ops: []Op{failed(a, "locksidecar.errors.InvalidRequest")}, notes: []history.Op{during("kill-sidecar sidecar0", 0, 5)}, broken: "error"},
		"an error of another client":            {ops: []Op{failed(a, "connection_lost")}, notes: []history.Op{during("kill-sidecar sidecar0", 0, 5)}, broken: "error"},
		"an error without a cause":              {ops: []Op{failed(a, unavailable)}, broken: "error"},
		"an error of another's sidecar":         {ops: []Op{failed(a, unavailable)}, notes: []history.Op{during("kill-sidecar sidecar1", 0, 5)}, broken: "error"},
		"an error long after the fault":         {ops: []Op{failed(acquired("a", "app0-1", "k", 0, 7000, 7001), unavailable)}, notes: []history.Op{during("kill-sidecar sidecar0", 0, 1000)}, broken: "error"},
		"the session's end while the store hangs": {
			ops: []Op{failed(a, "locksidecar.errors.SessionEnded")}, notes: []history.Op{during("freeze-postgres", 0, 5)}, broken: "error",
		},
		"the store hangs": {ops: []Op{failed(a, "locksidecar.errors.StoreUnavailable")}, notes: []history.Op{during("freeze-postgres", 0, 5)}},
		"an interrupted release while the store hangs": {
			ops: []Op{a, timedOut(released(a, Failed, 20, 2090))}, notes: []history.Op{during("freeze-postgres", 0, 4000)},
		},
		"a release that waits for all of its time while the store hangs": {
			ops: []Op{a, timedOut(released(a, Failed, 20, 4090))}, notes: []history.Op{during("freeze-postgres", 0, 5000)}, broken: "error",
		},
		"an interrupted release without an answer": {ops: []Op{a, timedOut(released(a, Failed, 20, 2090))}, broken: "error"},
		"an error without words":                   {ops: []Op{func() Op { op := failed(a, unavailable); op.Text = " "; return op }()}, notes: []history.Op{during("kill-sidecar sidecar0", 0, 5)}, broken: "error"},
		"an acquire without descriptors":           {ops: []Op{failed(a, unavailable)}, notes: []history.Op{during("few-descriptors app0", 0, 5)}},
		"a release without descriptors":            {ops: []Op{a, failed(released(a, Failed, 20, 30), unavailable)}, notes: []history.Op{during("few-descriptors app0", 0, 5)}, broken: "error"},
		"asyncio has too few":                      {ops: []Op{few(failed(a, unavailable))}},
		"asyncio has too few to release":           {ops: []Op{a, few(failed(released(a, Failed, 20, 30), unavailable))}, broken: "error"},
		"held, without a wait":                     {ops: []Op{func() Op { op := failed(a, "locksidecar.errors.LockHeld"); op.Wait = 0; return op }()}},
		"held, after a wait":                       {ops: []Op{failed(a, "locksidecar.errors.LockHeld")}, broken: "error"},
		"lost, since a fault long ago":             {ops: []Op{a, failed(released(a, Failed, 20000, 20001), "locksidecar.errors.LockLost")}, notes: []history.Op{during("cut sidecar0", 500, 5000)}},
		"lost, and nothing has happened":           {ops: []Op{a, failed(released(a, Failed, 20000, 20001), "locksidecar.errors.LockLost")}, broken: "error"},
		"released twice":                           {ops: []Op{a, failed(released(a, Failed, 20, 30), "locksidecar.errors.NotHolder")}, broken: "error"},
		"released by a call that was lost":         {ops: []Op{a, released(a, Cancelled, 20, 30), again2(a)}},
		"held, and nobody knows":                   {ops: []Op{a, said("app0-1", 500), looked(600, "k")}, broken: "known"},
		"held, and a program knows":                {ops: []Op{said("app0-1", 500, "keep"), looked(600, "keep")}},
		"held, and only a dead one knows":          {ops: []Op{said("app0-1", 500, "keep"), looked(600, "keep")}, notes: []history.Op{{Kind: history.Ended, Whose: "app0-1", Call: 550 * ms, Return: 560 * ms}}, broken: "known"},
		"a program is wrong":                       {ops: []Op{said("app0-1", 500, "keep"), looked(600)}, broken: "known"},
		"an object that works again":               {ops: []Op{{ID: "o", App: "app0-1", Program: "py-threads", Kind: Again, Outcome: Done, Call: 1, Return: 2}}},
		"an object that does not":                  {ops: []Op{{ID: "o", App: "app0-1", Program: "py-threads", Kind: Again, Outcome: Timeout, Call: 1, Return: 2}}, broken: "again"},
		"an object that hangs":                     {ops: []Op{{ID: "o", App: "app0-1", Program: "py-threads", Kind: Again, Call: 1}}, broken: "again time"},
	} {
		t.Run(name, func(t *testing.T) {
			ops := story.ops
			if !slices.ContainsFunc(ops, func(op Op) bool { return op.Kind == Stored }) {
				ops = append(slices.Clone(ops), looked(30000))
				ops[len(ops)-1].Call, ops[len(ops)-1].Return = 1, 1 // so that it does not make the story longer
			}
			var broken []string
			report := Judge(ops, story.notes, storyRules)
			for _, v := range report.Violations {
				if !slices.Contains(broken, v.Rule) {
					broken = append(broken, v.Rule)
				}
			}
			slices.Sort(broken)
			if strings.Join(broken, " ") != story.broken {
				t.Errorf("broken %q, want %q: %v", broken, story.broken, report.Err())
			}
		})
	}
}

// few makes an op one of the program with few descriptors.
func few(op Op) Op {
	op.Program, op.Text = "py-asyncio", "there is no file descriptor left"
	return op
}

// php makes an op one of the program for PHP.
func php(op Op) Op {
	op.Program = "php"
	return op
}

// asking makes a grant one that the program holds until it is lost.
func asking(op Op) Op {
	op.Form = through
	return op
}

// child makes an op one of a child.
func child(op Op) Op {
	op.Pid = 7
	return op
}

// again2 is a second release, which says that it was released already.
func again2(hold Op) Op {
	op := failed(released(hold, Failed, 40, 50), "locksidecar.errors.NotHolder")
	op.ID += "-again"
	return op
}

// TestTooLittle: of a run in which nothing happens, nothing is believed.
func TestTooLittle(t *testing.T) {
	rules := storyRules
	rules.Least = Counts{Grants: 2}
	a := acquired("a", "app0-1", "k", 1, 0, 10)
	for _, ops := range [][]Op{nil, {a, looked(5)}} {
		report := Judge(ops, nil, rules)
		if !slices.ContainsFunc(report.Violations, func(v Violation) bool { return v.Rule == "traffic" }) {
			t.Errorf("%d ops are enough", len(ops))
		}
	}
	rules.Least = Counts{Frozen: 1}
	for end, enough := range map[int64]bool{2900: false, 4900: true} { // of a freeze
		report := Judge([]Op{a, looked(9000)}, []history.Op{during("freeze-sidecar sidecar0", 100, end)}, rules)
		if slices.ContainsFunc(report.Violations, func(v Violation) bool { return v.Rule == "traffic" }) == enough {
			t.Errorf("a freeze until %d ms: %+v", end, report.Counts)
		}
	}
	if report := Judge([]Op{a}, nil, storyRules); !slices.ContainsFunc(report.Violations, func(v Violation) bool { return v.Rule == "known" }) {
		t.Error("nobody has looked at what is held, and nobody complains")
	}
}

// TestWhatIsWrittenIsRead: of a call the last line counts, and a line that was broken off is none.
func TestWhatIsWrittenIsRead(t *testing.T) {
	a := acquired("a", "app0-1", "k", 1, 0, 10)
	began := a
	began.Return, began.Outcome, began.Tokens = 0, "", nil
	var file bytes.Buffer
	for _, op := range []Op{began, a} {
		if err := json.NewEncoder(&file).Encode(op); err != nil {
			t.Fatal(err)
		}
	}
	file.WriteString(`{"id":"b","ca`)
	ops, err := Read(&file)
	if err != nil || !reflect.DeepEqual(ops, []Op{a}) {
		t.Errorf("read %v, %v", ops, err)
	}
	if _, err := Read(strings.NewReader("{\"id\":\n{\"id\":\"a\"}\n")); err == nil {
		t.Error("a line that cannot be read was passed over")
	}
}
