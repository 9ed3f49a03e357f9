package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// TypeOf returns the type of a key: the part before the first colon, or an empty string without a colon.
func TypeOf(key string) string {
	before, _, found := strings.Cut(key, ":")
	if !found {
		return ""
	}
	return before
}

// Stats counts the contents of a database. Each list is ordered by Held, descending, and has at most
// [StatLines] lines. If there are more, a last line named [Others], without Namespace, sums the rest.
type Stats struct {
	Types []Stat
	Pods  []Stat // Waiting is zero
}

// StatLines limits the lines of a list of Stats. The line for [Others] does not count.
const StatLines = 1000

// Others names the line that sums the locks without a line of their own.
const Others = "_others"

// Stat counts the locks of one type, or of one pod. Each holder of a shared lock counts as one.
type Stat struct {
	// Namespace is the namespace of the keys. Name is the type of the keys (see [TypeOf]), or the pod.
	Namespace, Name string
	// Held counts present holders, and Shared those of them that share a lock. Expired counts holders whose lease has expired but is not reaped yet.
	// Waiting counts waiters.
	Held, Shared, Expired, Waiting int64
	// Average and Longest say how long the Held locks have been held.
	Average, Longest time.Duration
}

// Plus returns the sum of both lines, under the name of s.
func (s Stat) Plus(o Stat) Stat {
	held := s.Held + o.Held
	if held > 0 { // the sum of the times may overflow a duration
		s.Average = time.Duration((float64(s.Average)*float64(s.Held) + float64(o.Average)*float64(o.Held)) / float64(held))
	}
	s.Held, s.Shared = held, s.Shared+o.Shared
	s.Expired, s.Waiting = s.Expired+o.Expired, s.Waiting+o.Waiting
	s.Longest = max(s.Longest, o.Longest)
	return s
}

// Counts are lines of Stats by their names.
type Counts map[[2]string]Stat

// Add adds to the line with these names.
func (c Counts) Add(namespace, name string, more Stat) {
	more.Namespace, more.Name = namespace, name
	line := [2]string{namespace, name}
	c[line] = more.Plus(c[line])
}

// Lines returns the lines in their order, at most [StatLines] and the others.
func (c Counts) Lines() []Stat { return Top(slices.Collect(maps.Values(c)), StatLines) }

// Top sums lines up that have the same names, and returns those with the most locks in their order. If there are more than limit, a
// last line is the sum of the others, also of those that were summed up before.
func Top(lines []Stat, limit int) []Stat {
	sums := Counts{}
	for _, s := range lines {
		sums.Add(s.Namespace, s.Name, s)
	}
	rest := [2]string{"", Others}
	others, some := sums[rest]
	delete(sums, rest)
	all := slices.SortedFunc(maps.Values(sums), func(a, b Stat) int {
		return cmp.Or(
			cmp.Compare(b.Held, a.Held), cmp.Compare(b.Waiting+b.Expired, a.Waiting+a.Expired),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if len(all) <= limit && !some {
		return all
	}
	top := min(len(all), limit)
	for _, s := range all[top:] {
		others = others.Plus(s)
	}
	others.Namespace, others.Name = "", Others
	return append(all[:top:top], others)
}

// Election is the result of Elect.
type Election struct {
	Elected bool
	// Left is the rest of the elected instance's term.
	Left time.Duration
}
