package cli

import (
	"io"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/deadlock"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// deadlocksDocument is what "deadlocks -o json" prints.
type deadlocksDocument struct {
	WaitingCalls int              `json:"waiting_calls"`
	Keys         int              `json:"keys"`
	Deadlocks    [][]deadlockStep `json:"deadlocks"`
}

// deadlockParty is a session. All is null if the call belongs to none.
type deadlockParty struct {
	Pod     *string `json:"pod"`
	Session *string `json:"session"`
	Owner   *string `json:"owner"`
}

// deadlockStep is one session of a circle. It holds what the session before it waits for.
type deadlockStep struct {
	deadlockParty
	Holds    deadlockHold `json:"holds"`
	WaitsFor deadlockCall `json:"waits_for"`
}

type deadlockHold struct {
	Key    string `json:"key"`
	Mode   string `json:"mode"`
	HeldMS int64  `json:"held_ms"`
}

type deadlockCall struct {
	Key       string         `json:"key"`
	Mode      string         `json:"mode"`
	Limit     *int           `json:"limit"` // null: none
	WaitingMS int64          `json:"waiting_ms"`
	Behind    *deadlockParty `json:"behind"` // the exclusive call ahead of it, if the holders alone do not keep it waiting
}

// writeJSON writes what was found as JSON.
func (f *contention) writeJSON(w io.Writer) error {
	doc := deadlocksDocument{WaitingCalls: f.calls, Keys: f.keys, Deadlocks: [][]deadlockStep{}}
	for _, circle := range f.circles {
		steps := make([]deadlockStep, len(circle))
		for i := range circle {
			steps[i] = stepDocument(&circle[i], &circle[(i+len(circle)-1)%len(circle)])
		}
		doc.Deadlocks = append(doc.Deadlocks, steps)
	}
	if err := writeJSON(w, doc); err != nil || len(f.circles) == 0 {
		return err
	}
	return exitcode.StatusError(circleFound)
}

func stepDocument(s, before *deadlock.Step) deadlockStep {
	step := deadlockStep{
		deadlockParty: partyDocument(s.Call.Party),
		Holds:         deadlockHold{before.Key, modeOf(before.Holder.Shared), before.Holder.For.Milliseconds()},
		WaitsFor:      deadlockCall{Key: s.Key, Mode: modeOf(s.Call.Shared), WaitingMS: s.Call.For.Milliseconds()},
	}
	if s.Call.Limit > 0 {
		step.WaitsFor.Limit = &s.Call.Limit
	}
	if s.Ahead != nil {
		ahead := partyDocument(s.Ahead.Party)
		step.WaitsFor.Behind = &ahead
	}
	return step
}

func partyDocument(p deadlock.Party) (d deadlockParty) {
	if p != (deadlock.Party{}) {
		d.Pod, d.Session = &p.Pod, &p.Session
	}
	if p.Owner != "" {
		d.Owner = &p.Owner
	}
	return d
}

func modeOf(shared bool) string {
	if shared {
		return client.ModeShared
	}
	return "exclusive"
}
