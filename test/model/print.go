package model

import (
	"fmt"
	"strings"
)

var verbNames = map[verb]string{
	opens: "opens a lease", opensNot: "loses the connection of its open", slow: "sends a renewal, slowly", attempts: "begins an acquire", waits: "begins to wait at once", leaves: "its app leaves, or releases",
	checks: "checks its wait", renewal: "sends a renewal", reap: "sends a reap", goes: "sends what its phase asks for",
	loses: "loses its lease", restarts: "is started again", crashes: "crashes",
}

var (
	kindNames = [...]string{
		"nothing", "acquire", "enqueue", "check", "cancel", "release", "withdraw", "open", "renew", "reap", "sweep",
	}
	stepNames = [...]string{
		"acquire_one looks", "acquire_one updates", "reads", "ask locks the row and looks", "ask decides, commits",
		"release_one", "hand_off chooses", "hand_off gives, commits", "cancel_one", "check", "check again", "reap_one",
		"reap_waited", "reap_rest", "lease_open", "lease_renew locks", "lease_renew commits", "new_history", "answer",
	}
	answerNames = [...]string{"done", "granted", "held", "in line", "lease lost", "not there", "failed, nothing done"}
	phaseNames  = [...]string{
		"idle", "asking", "enqueuing", "queued", "cancelling", "withdrawing", "HELD", "releasing",
	}
	trustNames = [...]string{"", "trusted", "lost"}
)

func name(i int) string { return string(rune('A' + i)) }

// describe is a line of a trace: what happens, and what is then.
func describe(a action, before, after *State, b *Bounds) string {
	return fmt.Sprintf("%-52s %s", what(a, before), after.describe(b))
}

func what(a action, before *State) string {
	who := name(int(a.who)) + " "
	o := &before.sc[a.who].ops[a.lane]
	switch a.verb {
	case steps:
		late := ""
		if o.cut {
			late = " (cut off)"
		}
		return who + kindNames[o.kind] + ": " + stepNames[o.step] + late
	case hears, hearsNo:
		return who + "hears of its " + kindNames[o.kind] + ": " + answerNames[o.answer]
	case early:
		return who + "hears of its acquire before the commit"
	case drops:
		return "what " + who + "had sent (" + kindNames[o.kind] + ") is never carried out"
	case cuts:
		return who + "loses the connection of its " + kindNames[o.kind]
	case ticks:
		return "-- a tick --"
	case sleeps:
		return "-- a tick, in which " + who + "sleeps --"
	case lags:
		return "the standby falls behind"
	case promotes:
		return "the standby is promoted"
	case promotesAhead:
		return "the standby is promoted, its clock is far ahead"
	default:
		return who + verbNames[a.verb]
	}
}

// describe is what the database has, and what each sidecar believes.
func (s *State) describe(b *Bounds) string {
	var w strings.Builder
	d := &s.db
	fmt.Fprintf(&w, "key: %s", d.lease(d.holder))
	if d.holder != 0 {
		fmt.Fprintf(&w, " token %d", d.token)
	}
	for i, q := range d.queue {
		if q.grant != 0 {
			fmt.Fprintf(&w, ", %d. %s (%s)", i+1, grantName(q.grant), d.lease(q.lease))
		}
	}
	if d.promoted {
		w.WriteString(", promoted")
	}
	for i := range b.Sidecars {
		c := &s.sc[i]
		fmt.Fprintf(&w, " | %s: %s", name(i), phaseNames[c.phase])
		if c.phase == held || c.phase == releasing {
			fmt.Fprintf(&w, " token %d", c.token)
		}
		for slot, l := range c.leases {
			if l.state != unused {
				fmt.Fprintf(&w, ", %s %s %d", leaseName(idOf(i, slot)), trustNames[l.state], l.left)
			}
		}
	}
	return w.String()
}

func grantName(g attemptID) string {
	if g == former {
		return "a former attempt"
	}
	return name(int(g) - 1)
}

func leaseName(l leaseID) string { return fmt.Sprintf("%s%d", name(l.owner()), l.slot()+1) }

func (d *database) lease(l leaseID) string {
	switch {
	case l == 0:
		return "free"
	case l == gone, !d.exists(l):
		return "a dead lease"
	case !d.lives(l):
		return leaseName(l) + " expired"
	default:
		return fmt.Sprintf("%s lives %d", leaseName(l), d.leases[l].left)
	}
}
