package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPassedOver: a call that waits is passed over by few. Nobody saw one of these calls in the queue.
// Proves: promise 5
func TestPassedOver(t *testing.T) {
	const much, few = 200, 80
	for name, c := range map[string]struct {
		waits   string // the call that waits, from 0 to 4500
		passing int
		more    string // of those that pass it
		also    string
		broken  bool
	}{
		"granted after many":                     {"granted t9000 u9000 w-1", much, "", "", true},
		"granted after one too many":             {"granted t9000 u9000 w-1", few + 1, "", "", true},
		"in vain, and many had it":               {"timeout w4500", much, "", "", true},
		"granted after many, of another sidecar": {"granted t9000 u9000 w-1 n1", much, "n2", "", true},
		"a shared one":                           {"granted t9000 u9000 w-1 m3 q1", much, "m3 q1", "", true},
		"after a fault":                          {"granted t9000 u9000 w-1", much, "", "x fault 0-1", false},
		"in a fault":                             {"granted t9000 u9000 w-1", much, "", "x fault 3000-3100", false},
		"on a slow machine":                      {"granted t9000 u9000 w-1", much, "", "x slow 3000-3100", false},
		"the key was broken":                     {"granted t9000 u9000 w-1", much, "", "x force 3000-3001 done", false},
		"granted after few":                      {"granted t9000 u9000 w-1", few, "", "", false},
		"in vain, and few had it":                {"timeout w4500", few, "", "", false},
		"granted before them, and told late":     {"granted t1 u9000 w-1", much, "", "", false},
		"did not wait":                           {"granted t9000 u9000 w0", much, "", "", false},
		"several keys":                           {"granted t9000 u9000 w-1 gq", much, "", "", false},
		"behind calls for several keys":          {"granted t9000 u9000 w-1", much, "gq", "", false},
		"asked for again":                        {"granted t9000 u9000 w-1 r1", much, "", "", false},
		"a bind:ttl grant may have run out":      {"granted t9000 u9000 w-1 s-", much, "", "", false},
		"of another key":                         {"granted t9000 u9000 w-1 kj", much, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			fmt.Fprintf(&text, "a acquire 100-4500 %s\n", c.waits)
			for i := range c.passing {
				at := 110 + 20*i
				fmt.Fprintf(&text, "b acquire %d-%d granted t%d u9000 w-1 %s\nb release %d-%d done t%d\n", at, at+8, 2+i, c.more, at+10, at+15, 2+i)
			}
			ops := script(t, text.String()+c.also)
			h := arrange(ops, DefaultRules())
			if broken := passed(h); (len(broken) > 0) != c.broken {
				t.Errorf("broken is %v", broken)
			}
			if got := slices.Contains(rules(All(ops, DefaultRules())), "passed"); got != c.broken {
				t.Errorf("all rules together: passed is broken: %v", got)
			}
		})
	}
}

// TestTheirTurnsAreOfThoseWhoCameBefore: calls that were made before another one do not pass it, however many they are.
func TestTheirTurnsAreOfThoseWhoCameBefore(t *testing.T) {
	const crowd = 200
	var text strings.Builder
	for i := range crowd {
		at := 300 + 20*i
		fmt.Fprintf(&text, "b%d acquire %d-%d granted t%d u9000 w-1\nb%d release %d-%d done t%d\n", i, 1+i, at, 2+i, i, at+5, at+10, 2+i)
	}
	fmt.Fprintf(&text, "a acquire 290-%d granted t9000 u9000 w-1\n", 310+20*crowd)
	h := arrange(script(t, text.String()), DefaultRules())
	if broken := passed(h); len(broken) > 0 || h.counts.Turns != crowd+1 || h.counts.Passed != 0 {
		t.Errorf("%v, %+v", broken, h.counts)
	}
}
