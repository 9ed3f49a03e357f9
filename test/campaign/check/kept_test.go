package check

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/store"
)

// goodKept are histories in which nothing is wrong. Sidecar 1 keeps keys, sidecar 2 does not.
var goodKept = map[string]string{
	"taken again, and then given up": `
		a acquire 0-10 granted t1 u900 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u900 n1
		a release 40-41 done t257 n1
		b acquire 42-43 granted t258 u900 n1
		b release 44-45 done t258 n1
		c acquire 300-310 granted t513 u900 n2`,
	"refused elsewhere, and shown there as held, while it is kept": `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		b get 42-43 free n1
		c acquire 45-66 held n2
		c get 70-75 held n2
		b acquire 100-101 granted t258 u9000 n1
		b release 110-111 done t258 n1
		c acquire 120-121 timeout w1 n2`,
	"who waits elsewhere waits for a recall": `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		a acquire 42-43 granted t258 u9000 n1
		a release 44-45 done t258 n1
		c acquire 50-65 granted t513 u9000 w-1 n2`,
	"taken until the sidecar hears of the waiter elsewhere": `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 42-100 granted t513 u9000 w-1 n2
		x line 50-51 t257 ap l1:x-5
		b acquire 60-61 granted t258 u9000 n1
		b release 62-63 done t258 n1
		b acquire 64-65 granted t259 u9000 n1
		b release 66-67 done t259 n1`,
	"its sidecar was killed, so it is held until the lease ends": `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		x fault 50-60
		x ended 50-60 n1
		c acquire 3000-3010 held n2
		b acquire 3020-3030 held n1
		c acquire 3050-6000 granted t513 u9000 w-1 n2`,
	"frozen while it kept the key, and it took it when it went on": `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		x fault 50-1900
		b acquire 1800-1910 granted t258 u9000 n1`,
	"kept from the first grant, because the one before told nobody": `
		z acquire 0- n1
		a acquire 1000-1010 granted t257 u9000 n1
		a release 1020-1030 done t257 n1
		c acquire 1045-1066 held n2`,
	"handed on after the time for which it is kept": `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		b acquire 2500-2610 granted t258 u9000 w-1 n1
		a release 2600-2605 done t257 n1`,
	"a writer keeps a shared key": `
		r acquire 0-5 granted t1 u9000 m n1
		r release 6-7 done t1 n1
		a acquire 8-10 granted t257 u9000 n1
		a release 20-30 done t257 n1
		a acquire 31-33 granted t258 u9000 n1
		a release 40-41 done t258 n1
		c acquire 45-66 held m n2
		c acquire 70-80 granted t513 u9000 m w-1 n2`,
	"as many grants as there are tokens": manyTakes(store.TokensPerGrant, 1),
}

// manyTakes are so many grants of a kept key, each as long after the other.
func manyTakes(n, each int) string {
	var text strings.Builder
	for i := range n {
		at := i * each
		fmt.Fprintf(&text, "a acquire %d-%d granted t%d u%d n1\na release %d-%d done t%d n1\n", at, at, 1+i, at+9000, at, at, 1+i)
	}
	return text.String()
}

// badKept are histories in which something is wrong, and the rules that must say so.
var badKept = map[string]struct{ broken, text string }{
	"taken while another one has it": {"exclusion kept model", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 45-60 granted t258 u9000 w-1 n2
		b acquire 70-71 granted t259 u9000 n1`},
	"taken after the next grant elsewhere, under an older token": {"exclusion model tokens", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 45-60 granted t513 u9000 w-1 n2
		b acquire 70-71 granted t258 u9000 n1`},
	"the next token, elsewhere": {"kept", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 45-60 granted t258 u9000 w-1 n2`},
	"a token more than there are":                                      {"kept", manyTakes(store.TokensPerGrant+1, 1)},
	"given too long after the store's grant":                           {"kept", manyTakes(24, 90)},
	"given too long after the store's grant, and a fault is no reason": {"kept", manyTakes(24, 90) + "x fault 100-200"},
	"kept without use for too long": {"kept", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		b acquire 1300-1301 granted t2 u9000 n1`},
	"refused by the sidecar that keeps it": {"model", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		b acquire 45-46 held n1`},
	"shown as held by the sidecar that keeps it": {"model", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		b get 45-46 held n1`},
	"refused elsewhere long after": {"model", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 1400-1420 held n2`},
	"refused elsewhere long after its sidecar was killed": {"model", `
		a acquire 0-10 granted t1 u90000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u90000 n1
		a release 40-41 done t257 n1
		x fault 50-60
		x ended 50-60 n1
		c acquire 16000-16010 held n2`},
	"refused elsewhere, and that sidecar does not keep keys": {"model", `
		a acquire 0-10 granted t1 u9000 n2
		a release 20-30 done t1 n2
		a acquire 31-33 granted t257 u9000 n2
		a release 40-41 done t257 n2
		c acquire 45-66 held n1`},
	"refused elsewhere, and somebody else had it before": {"model", `
		z acquire 0-10 granted t1 u9000 n2
		z release 20-30 done t1 n2
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 45-66 held n2`},
	"waited elsewhere for a key that nobody used": {"kept", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 40-41 done t257 n1
		c acquire 50-1065 granted t513 u9000 w-1 n2`},
	"taken long after somebody elsewhere stood in line": {"fifo", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		a release 1040-1041 done t257 n1
		c acquire 42-1100 granted t513 u9000 w-1 n2
		x line 50-51 t257 ap l1:x-5
		b acquire 1060-1061 granted t258 u9000 n1
		b release 1062-1063 done t258 n1`},
	"given by the store after somebody stood in line, and a kept key was taken later": {"fifo", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		c acquire 34-100 granted t769 u9000 w-1 n2
		x line 35-36 t257 ap l1:x-4
		a release 40-41 done t257 n1
		b acquire 50-61 granted t513 u9000 n1
		b release 62-63 done t513 n1
		b acquire 64-65 granted t514 u9000 n1
		b release 66-67 done t514 n1`},
	"handed on past one who stood in line": {"fifo", `
		a acquire 0-10 granted t1 u9000 n1
		a release 20-30 done t1 n1
		a acquire 31-33 granted t257 u9000 n1
		c acquire 42-100 granted t513 u9000 w-1 n2
		x line 50-51 t257 ap l1:x-4
		b acquire 60-81 granted t258 u9000 w-1 n1
		a release 70-71 done t257 n1
		b release 82-83 done t258 n1`},
	"a shared key is refused elsewhere long after": {"shares", `
		r acquire 0-5 granted t1 u9000 m n1
		r release 6-7 done t1 n1
		a acquire 8-10 granted t257 u9000 n1
		a release 20-30 done t257 n1
		a acquire 31-33 granted t258 u9000 n1
		a release 40-41 done t258 n1
		c acquire 1400-1466 held m n2`},
}

const keeps = "x keeps 0-0 u200 n1\n"

// TestKeptKeys: what sidecars may do with keys that they keep, and what they must not.
// Proves: promise 1, promise 5
func TestKeptKeys(t *testing.T) {
	for name, text := range goodKept {
		t.Run(name, func(t *testing.T) {
			if err := All(script(t, text+"\n"+keeps), DefaultRules()).Err(); err != nil {
				t.Error(err)
			}
		})
	}
	for name, c := range badKept {
		t.Run(name, func(t *testing.T) {
			want := strings.Replace(c.broken, "model", "model porcupine", 1) // both see it
			if got := strings.Join(rules(All(script(t, c.text+"\n"+keeps), DefaultRules())), " "); got != want {
				t.Errorf("broken: %q, want %q", got, want)
			}
		})
	}
}

// TestCountsOfKeptKeys: takes, and grants to others, are counted, and are no hand-ons.
func TestCountsOfKeptKeys(t *testing.T) {
	got := All(script(t, goodKept["who waits elsewhere waits for a recall"]+"\n"+keeps), DefaultRules()).Counts
	if got.Kept != 1 || got.Recalled != 1 || got.HandedOn != 0 {
		t.Errorf("%+v", got)
	}
}
