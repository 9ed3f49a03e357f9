package wire

import (
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// features are the features of this version, for GET /v1. The names are stable.
var features = []string{
	"wait", "bind_ttl", "data", "request_id", "sessions", "list",
	"reentrant", "outcome", "hold", "stop", "events", "several_keys", "stats",
	"release_by_id", "shared", "waiters",
}

// featureForce and featureNamespaces are listed only if the sidecar allows them.
const (
	featureForce      = "force"
	featureNamespaces = "namespaces"
)

// AppendAbout appends the answer to GET /v1. namespaces says that other namespaces can be read.
func AppendAbout(b []byte, version, namespace string, force, namespaces bool) []byte {
	o := append(open(b).text("version", version).text("api", "v1").text("namespace", namespace).name("features"), '[')
	for _, f := range features {
		o = appendString(comma(o), f)
	}
	if force {
		o = appendString(comma(o), featureForce)
	}
	if namespaces {
		o = appendString(comma(o), featureNamespaces)
	}
	return append(o, "]}"...)
}

// AppendReady appends the answer to GET /readyz, with facts about the store's server.
func AppendReady(b []byte, details map[string]string) []byte {
	facts := open(open(b).text("status", "ready").name("store"))
	for _, name := range slices.Sorted(maps.Keys(details)) {
		facts = facts.text(name, details[name])
	}
	return object(facts.end()).end()
}

// AppendGrant appends the answer to an acquire that was granted.
func AppendGrant(b []byte, g *lease.Grant) []byte { return open(b).grant(g).end() }

func (o object) grant(g *lease.Grant) object {
	return o.boolean("granted", true).
		text("key", g.Key).
		number("token", g.Token).
		textIf("session", g.Session).
		text("bind", g.Bind.String()).
		number("reentry", int64(g.Reentry)).
		millis("expires_in_ms", g.ExpiresIn).
		millis("waited_ms", g.Waited).
		time("acquired_at", g.AcquiredAt).
		mode(true, g.Shared, g.Limit).
		slot(g.Limit, g.Slot)
}

// AppendGrants appends the answer to an acquire of several keys.
func AppendGrants(b []byte, all []lease.Grant) []byte {
	b = append(open(b).name("locks"), '[')
	for i := range all {
		b = AppendGrant(comma(b), &all[i])
	}
	return append(b, "]}"...)
}

// AppendAmended appends the answer to a PATCH.
func AppendAmended(b []byte, g *lease.Grant) []byte {
	return open(b).grant(g).stopping(g.Stopping).end()
}

// AppendSkipped appends the answer to an acquire that was skipped.
func AppendSkipped(b []byte, s *lease.SkippedError) []byte {
	return open(b).boolean("granted", false).text("key", s.Key).text("outcome", OutcomeName(store.Success)).json("result", s.Result).end()
}

// OutcomeName is the name of an outcome in the API, empty for none.
func OutcomeName(o store.ReleaseOutcome) string {
	switch o {
	case store.Success:
		return "success"
	case store.Failure:
		return "failure"
	default:
		return ""
	}
}

// AppendReleased appends the answer to a release.
func AppendReleased(b []byte, r *lease.Released) []byte {
	return open(b).
		text("key", r.Key).
		boolean("released", r.Reentry == 0 && !r.Nothing).
		number("reentry", int64(r.Reentry)).
		millis("held_ms", r.HeldFor).
		end()
}

// AppendAsked appends the answer to a request to stop.
func AppendAsked(b []byte, key string) []byte {
	return open(b).text("key", key).boolean("requested", true).end()
}

// AppendEnded appends the answer to the end of a session.
func AppendEnded(b []byte, id string) []byte {
	return open(b).text("session", id).boolean("ended", true).end()
}

// AppendView appends a lock as GET shows it.
func AppendView(b []byte, v *lease.View) []byte {
	state := "free"
	if v.Held {
		state = "held"
	}
	o := open(b).text("key", v.Key).text("type", store.TypeOf(v.Key)).text("state", state).boolean("mine", v.Mine)
	if v.Mine {
		o = o.number("token", v.Token)
	} else {
		o = o.null("token")
	}
	o = append(o.holders(&v.Lock).name("holders"), '[')
	for i := range v.Holders {
		o = comma(o)
		o = open(o).share(&v.Holders[i], v.Limit).end()
	}
	o = append(o, ']')
	return o.number("queue_length", int64(v.QueueLength)).boolean("cached", v.Cached).stopping(v.Stopping).end()
}

// maxPage limits the bytes of a list's page to about this size, whatever its limit.
const maxPage = 1 << 20

// AppendPage appends a page, or the first part of a large one. Clients continue at the cursor.
func AppendPage(b []byte, page *lease.Page) []byte {
	next := page.Next
	o := append(open(b).name("locks"), '[')
	for i := range page.Locks {
		if len(o) >= maxPage {
			next = page.Locks[i-1].Key
			break
		}
		o = AppendView(comma(o), &page.Locks[i])
	}
	return append(o, ']').textIf("next_cursor", encodeCursor(next)).end()
}
