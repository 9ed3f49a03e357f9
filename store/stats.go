package store

import (
	"strings"
	"time"
)

// TypeOf is the type of a key: the part before the first colon, empty if there is none.
func TypeOf(key string) string {
	before, _, found := strings.Cut(key, ":")
	if !found {
		return ""
	}
	return before
}

// Stats is what a database holds. Lists are ordered by Held, the most first, and have at most
// [StatLines] lines. A last line, with the Name [Others] and no Namespace, is the sum of the rest.
type Stats struct {
	Types []Stat
	Pods  []Stat // Waiting is zero
}

// StatLines is the most lines of a list of Stats, without the one of the others.
const StatLines = 1000

// Others names the line of all that have none.
const Others = "_others"

// Stat counts the locks of one type, or of one pod. Each holder of a shared lock counts as one.
type Stat struct {
	// Namespace is that of the keys; Name the type of the keys, see [TypeOf], or the pod.
	Namespace, Name string
	// Held are held now. Expired are those whose holder's lease is past its end and not reaped yet.
	// Waiting are queued.
	Held, Expired, Waiting int64
	// Average and Longest are how long those that are Held have been held.
	Average, Longest time.Duration
}

// Plus is the line of the locks of both, under the name of s.
func (s Stat) Plus(o Stat) Stat {
	held := s.Held + o.Held
	if held > 0 { // the sum of the times may be too long for a duration
		s.Average = time.Duration((float64(s.Average)*float64(s.Held) + float64(o.Average)*float64(o.Held)) / float64(held))
	}
	s.Held, s.Expired, s.Waiting = held, s.Expired+o.Expired, s.Waiting+o.Waiting
	s.Longest = max(s.Longest, o.Longest)
	return s
}

// Election is what became of an Elect.
type Election struct {
	Elected bool
	// Left is how long the term of who is elected lasts.
	Left time.Duration
}
