package clients

import (
	"fmt"
	"strings"
	"time"
)

// meaning is what an error of a client says.
type meaning string

const (
	held        meaning = "held"
	waitTimeout meaning = "wait_timeout"
	lockLost    meaning = "lock_lost"
	notHolder   meaning = "not_holder"
	ended       meaning = "session_ended"
	unreached   meaning = "unreachable" // the sidecar cannot be reached, broke the connection, or does not answer
	storeAway   meaning = "store_unavailable"
	draining    meaning = "draining"
	limited     meaning = "limit"
)

// codes are those of the clients whose errors have codes.
var codes = map[string]meaning{
	"held": held, "wait_timeout": waitTimeout, "lock_lost": lockLost, "not_holder": notHolder, "session_ended": ended,
	"unreachable": unreached, "connection_lost": unreached, "timeout": unreached, "store_unavailable": storeAway, "draining": draining, "limit": limited,
}

// meanings are the errors that programs may see here, by the names that the clients' READMEs have. Everything else is a fault of a
// client: an error of the language, or one that says that a call was wrong.
var meanings = map[string]map[string]meaning{
	"py": {
		"locksidecar.errors.LockHeld": held, "locksidecar.errors.WaitTimeout": waitTimeout, "locksidecar.errors.LockLost": lockLost,
		"locksidecar.errors.NotHolder": notHolder, "locksidecar.errors.SessionEnded": ended, "locksidecar.errors.NoAnswer": unreached,
		"locksidecar.errors.StoreUnavailable": storeAway, "locksidecar.errors.Draining": draining, "locksidecar.errors.LimitReached": limited,
	},
	"node": codes,
	"go":   codes,
	"rust": codes,
	"ruby": {
		"Locksidecar::LockHeld": held, "Locksidecar::WaitTimeout": waitTimeout, "Locksidecar::LockLost": lockLost,
		"Locksidecar::NotHolder": notHolder, "Locksidecar::SessionEnded": ended, "Locksidecar::NoAnswer": unreached,
		"Locksidecar::StoreUnavailable": storeAway, "Locksidecar::Draining": draining, "Locksidecar::LimitReached": limited,
	},
	"php": {
		`Locksidecar\Exception\LockHeld`: held, `Locksidecar\Exception\WaitTimeout`: waitTimeout, `Locksidecar\Exception\LockLost`: lockLost,
		`Locksidecar\Exception\NotHolder`: notHolder, `Locksidecar\Exception\SessionEnded`: ended, `Locksidecar\Exception\NoAnswer`: unreached,
		`Locksidecar\Exception\StoreUnavailable`: storeAway, `Locksidecar\Exception\Draining`: draining, `Locksidecar\Exception\LimitReached`: limited,
	},
	"java": {
		"LockHeldException": held, "WaitTimeoutException": waitTimeout, "LockLostException": lockLost, "NotHolderException": notHolder,
		"SessionEndedException": ended, "NoAnswerException": unreached, "StoreUnavailableException": storeAway,
		"DrainingException": draining, "LimitReachedException": limited,
	},
}

func meaningOf(op Op) (meaning, bool) {
	language, _, _ := strings.Cut(op.Program, "-")
	m, ok := meanings[language][op.Error]
	return m, ok
}

// causes are the faults that a meaning can come from, by the beginnings of their names.
var causes = map[meaning][]string{
	lockLost:  {"kill-", "freeze-", "drain-", "restart-", "cut", "flap", "half-open", "unheard", "latency", "narrow", "no-slots", "disk-full", "crash-"},
	ended:     {"kill-sidecar", "freeze-sidecar", "freeze-app", "drain-sidecar"},
	unreached: {"kill-sidecar", "freeze-sidecar", "freeze-app", "drain-sidecar", "few-descriptors", "little-memory"},
	storeAway: {"kill-", "freeze-", "drain-", "restart-", "cut", "flap", "half-open", "unheard", "latency", "narrow", "no-slots", "disk-full", "crash-"},
	draining:  {"drain-sidecar"},
	limited:   {"few-descriptors"},
}

// documented: each error is one of the client's own that the situation explains.
func documented(h *judged) (broken []Violation) {
	for _, op := range h.ops {
		if op.Outcome != Failed {
			continue
		}
		m, ok := meaningOf(op)
		switch {
		case !ok:
			broken = append(broken, Violation{Rule: "error", Ops: []Op{op}, Text: fmt.Sprintf("%s is not an error that the client documents for this", op.Error)})
		case !h.explained(op, m):
			broken = append(broken, Violation{Rule: "error", Ops: []Op{op}, Text: fmt.Sprintf("%s, and nothing explains it", m)})
		case strings.TrimSpace(op.Text) == "":
			broken = append(broken, Violation{Rule: "error", Ops: []Op{op}, Text: "the error has no words"})
		}
	}
	return broken
}

func (h *judged) explained(op Op, m meaning) bool {
	from, to := op.Call, op.Return
	switch m {
	case held:
		return op.Kind == Acquire && op.Wait == 0
	case unreached: // the program on asyncio has too few descriptors for all its tasks; a release always gets through
		if op.Kind != Release && op.Kind != Leave && op.Program == "py-asyncio" && strings.Contains(op.Text, "descriptor") {
			return true
		}
	case waitTimeout:
		return op.Kind == Acquire && op.Wait > 0
	case notHolder: // an earlier try to release it has succeeded, and nobody knew
		tries := 0
		for _, one := range h.byHold[op.Hold] {
			for _, try := range one.releases {
				if try.Call < op.Call && try.Outcome != Done {
					tries++
				}
			}
		}
		return op.Kind == Release && tries > 0
	case lockLost: // at any time since the grant
		if op.Kind == Acquire {
			return false
		}
		for _, one := range h.byHold[op.Hold] {
			from = min(from, one.grant.Call)
		}
	}
	// A release that is interrupted waits 2 s for its answer, and a sidecar may wait as long for a store that hangs, before it says so.
	hurried := m == unreached && op.Kind == Release && strings.Contains(op.Text, "(timeout)") && time.Duration(to-from) < h.rules.Timeout
	return h.struck(op, from, to, func(f trouble) bool {
		if hurried && f.part == "server" && strings.HasPrefix(f.name, "freeze-") {
			return true
		}
		if f.name == "few-descriptors" && (op.Kind == Release || op.Kind == Leave) {
			return false // a release always gets through
		}
		for _, begins := range causes[m] {
			if strings.HasPrefix(f.name, begins) {
				return true
			}
		}
		return false
	})
}
