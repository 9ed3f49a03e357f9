package console

import (
	"cmp"
	"maps"
	"net/url"
	"slices"

	"github.com/locksidecar/locksidecar/internal/client"
)

// sidecars is the data of the page about sidecars and sessions: those that hold locks, or wait for them.
type sidecars struct {
	Versions  []version
	Instances []instance // the first ones, by pod
	Sessions  []session  // the first ones: the longest holds, then the longest waits
	// Running and Open are the numbers of all instances and sessions.
	Running, Open int
	More          bool // there are more locks, or calls, than were read
}

type version struct {
	Name  string
	Count int
}

// instance is a run of a sidecar.
type instance struct {
	Name, Pod, Version string
	Sessions, Locks    int
	Longest            int64
}

// session is a session of an app.
type session struct {
	Who            who
	Instance       string // empty if it only waits
	Locks, Waiting int
	Held, Waits    int64 // the longest ones
}

func (c *console) sidecarsView(namespace string, _ url.Values) view {
	return view{name: "sidecars", title: "Sidecars", show: func() content {
		return seen(c.waitsOf(namespace).now(), func(w *waits) any { return sidecarsOf(w) })
	}}
}

func sidecarsOf(w *waits) *sidecars {
	instances, sessions := map[string]*instance{}, map[who]*session{}
	for name, h := range w.list.holds {
		in := at(instances, name.instance)
		in.Name, in.Pod, in.Version = name.instance, name.pod, client.VersionOf(name.instance)
		in.Locks += h.locks
		in.Longest = max(in.Longest, h.longest)
		if name.session == "" {
			continue
		}
		in.Sessions++
		s := at(sessions, who{Pod: name.pod, Session: name.session})
		s.Instance = name.instance
		s.Locks += h.locks
		s.Held = max(s.Held, h.longest)
	}
	for caller, calls := range w.callers {
		s := at(sessions, caller)
		s.Waiting, s.Waits = calls.calls, calls.longest
	}
	d := &sidecars{Running: len(instances), Open: len(sessions), More: w.More}
	versions := map[string]int{}
	for _, in := range instances {
		versions[in.Version]++
		d.Instances = append(d.Instances, *in)
	}
	for name, s := range sessions {
		s.Who = name
		d.Sessions = append(d.Sessions, *s)
	}
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		d.Versions = append(d.Versions, version{name, versions[name]})
	}
	slices.SortFunc(d.Instances, func(a, b instance) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(d.Sessions, func(a, b session) int {
		return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(b.Waits, a.Waits), cmp.Compare(a.Who.Pod, b.Who.Pod), cmp.Compare(a.Who.Session, b.Who.Session))
	})
	d.Instances = d.Instances[:min(len(d.Instances), rowsShown)]
	d.Sessions = d.Sessions[:min(len(d.Sessions), rowsShown)]
	return d
}

// at is the value of a key, made if it is missing.
func at[K comparable, V any](m map[K]*V, key K) *V {
	if m[key] == nil {
		m[key] = new(V)
	}
	return m[key]
}
