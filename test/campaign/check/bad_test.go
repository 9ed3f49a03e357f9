package check

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// bad are histories in which something is wrong, and the rules that must say so.
var bad = map[string]struct{ broken, text string }{
	"a key was held for nobody, though a bind:ttl lock was waited for": {"model", `
		a acquire 0-10 granted t1 u5000
		b acquire 5-2000 granted t9 u3000 w-1 s-
		a release 20-30 done t1
		c acquire 100-150 timeout w50
		d acquire 1600-1610 granted t3 u5000
		d release 1620-1630 done t3`},
	"two holders": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		b acquire 20-30 granted t2 u500`},
	"two holders by a hair": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		b acquire 20-499 granted t2 u900 w-1`},
	"two holders, for one was confirmed": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		a confirm 400-410 held t1 u800
		b acquire 20-700 granted t2 u990 w-1`},
	"the first of three still holds": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		b acquire 20-30 granted t2 u40
		c acquire 50-60 granted t3 u500`},
	"two holders, of one sidecar, another one was killed": {"exclusion model", `
		a acquire 0-10 granted t1 u500 n1
		x ended 20-30 n2
		b acquire 15-40 granted t2 u500 w-1 n1`},
	"two holders, the sidecar was killed before": {"exclusion model", `
		x ended 1-2 n1
		a acquire 3-10 granted t1 u500 n1
		b acquire 15-40 granted t2 u500 w-1 n2`},
	"refused, though the holder was told that it has it no more, and another machine was suspended": {"model", `
		a acquire 0-10 granted t1 u500 n1
		x ended 20-30 n2
		a confirm 40-45 nothold t1 n1
		b acquire 50-60 held n2
		b acquire 480-520 granted t2 u900 n2`},
	"killing the sidecar ends no bind:ttl": {"exclusion model", `
		a acquire 0-10 granted t1 u500 s- n1
		x ended 20-30 n1
		b acquire 15-40 granted t2 u500 w-1 n2`},
	"another session was dropped": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		c drop 15-16
		b acquire 20-40 granted t2 u500`},
	"the release began after the next grant": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		b acquire 5-20 granted t2 u500 w-1
		a release 30-40 done t1`},
	"a release of an earlier token frees the lock": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 40-50 granted t2 u500
		a release 60-70 nothold t1
		c acquire 80-90 granted t3 u500`},
	"breaking it was refused": {"exclusion model", `
		a acquire 0-10 granted t1 u500
		b force 20-30 refused
		b acquire 35-60 granted t2 u500`},
	"exclusion was promised again": {"exclusion model", `
		x unpromised 0-10
		a acquire 20-30 granted t1 u500
		b acquire 35-60 granted t2 u500`},
	"a session's lock is granted again while its server is replaced": {"exclusion", `
		a acquire 0-10 granted t1 u500
		x replaced 20-400
		b acquire 100-110 granted t2 u500`},
	"and so is a shared one": {"permits", `
		a acquire 0-10 granted t1 u500 m1
		x replaced 20-400
		b acquire 100-110 granted t2 u500 m1`},
	"a smaller token": {"model tokens", `
		a acquire 0-10 granted t7 u500
		a release 20-30 done t7
		b acquire 40-50 granted t6 u500`},
	"a smaller token, much later": {"model tokens", `
		a acquire 0-10 granted t7 u15
		b acquire 20-30 granted t8 u35
		c acquire 40-50 granted t9 u55
		d acquire 60-70 granted t5 u75`},
	"a token twice": {"exclusion model tokens", `
		a acquire 0-10 granted t7 u500
		b acquire 0-10 granted t7 u500`},
	"lost without a reason": {"model", `
		a acquire 0-10 granted t1 u500
		a lost 100-100 t1`},
	"not held any more, without a reason": {"model", `
		a acquire 0-10 granted t1 u500
		a confirm 20-30 nothold t1`},
	"not held at its release, without a reason": {"model", `
		a acquire 0-10 granted t1 u500
		a confirm 20-30 held t1 u600
		b get 40-41 free
		a release 50-60 done t1`},
	"confirmed after another one got it": {"model", `
		a acquire 0-10 granted t1 u100
		b acquire 20-150 granted t2 u500 w-1
		a confirm 160-170 held t1 u100`},
	"released by one who has lost it": {"model", `
		a acquire 0-10 granted t1 u100
		b acquire 20-150 granted t2 u500 w-1
		a release 160-170 done t1`},
	"released twice": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		a release 40-50 done t1`},
	"refused, and it is free": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 40-41 held`},
	"refused without an ask, and it is free": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 140-142 timeout w1 o`},
	"refused from the cache, long after": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 140-141 held c`},
	"waited in vain for a free lock": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 40-90 timeout w50`},
	"refused, and it is free; who waits had it not yet": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		c acquire 35-3000 timeout w2965
		b acquire 40-41 held
		d acquire 50-60 granted t2 u9000`},
	"it shows as held, and is free": {"model", `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b get 40-41 held`},
	"it shows as free, and is held": {"model", `
		a acquire 0-10 granted t1 u500
		b get 20-30 free`},
	"a holder's write is refused": {"fencing", `
		a acquire 0-10 granted t1 u500
		a write 20-30 stale t1`},
	"a fence that is none": {"fencing", `
		a acquire 0-10 granted t1 u100
		b acquire 20-150 granted t2 u500 w-1
		b write 160-161 done t2
		a write 162-163 done t1`},
	"refused long after a release, and only then the server crashed": {"model", `
		a acquire 0-10 granted t1 u9000
		a release 20-30 done t1
		x forgets 2000-2060
		b acquire 2070-2075 held
		b acquire 2090-2095 granted t2 u9000`},
	"a token that nobody has": {"fencing", `
		a acquire 0-10 granted t1 u500
		a write 20-30 done t5`},
	"told, in line, and a failover long ago forgot nothing": {"fifo", `
		x replaced 0-10
		h acquire 19000-19010 granted t1 u9000
		a acquire 19020-19060 granted t2 u9000 w-1
		h release 19050-19055 done t1
		x line 19110-19111 l1:x-3`},
	"overtaken in line": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2 l2:x-3
		h release 70-75 done t1
		b release 85-90 done t2`},
	"overtaken in line before its time was over": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w60
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2 l2:x-3
		h release 70-75 done t1
		b release 85-90 done t2`},
	"overtaken by the third": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-60 timeout w39
		c acquire 22-80 granted t2 u500 w-1
		x line 30-31 l1:x-2 l2:x-3 l3:x-4
		h release 70-75 done t1
		c release 85-90 done t2`},
	"one of several is overtaken": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1 g7
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:7 l2:x-3
		h release 70-75 done t1
		b release 85-90 done t2`},
	"one of several is overtaken, and somebody broke a key of nobody's": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1 g7
		a acquire 20-100 granted t4 u500 w-1 g7 kj
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:7 l2:x-4
		c force 40-45 done ki
		h release 70-75 done t1
		b release 85-90 done t2`},
	"who asked again is overtaken": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1 s- r1
		b acquire 21-80 granted t2 u500 w-1
		x line 40-41 l2:x-2/1 l3:x-3
		h release 70-75 done t1
		b release 85-90 done t2`},
	"an attempt had the key before it lost a place": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 25-26 t1 ap l2:x-2@a#q l3:x-3@a#r
		x line 30-31 t2 ah l4:x-1@a#p l5:x-2@a#q
		x line 40-41 t2 ah l5:x-2@a#q l6:x-1@a#p`},
	"a place was lost, and its lease was not": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x line 40-41 l2:x-2@a l3:x-1@a`},
	"a place was lost to a lease, and then for nothing": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x line 40-41 l2:x-2@a l3:x-1@b
		x line 50-51 l2:x-2@a l4:x-1@b`},
	"a place was lost, and the machine was only slow": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x slow 32-300
		x line 400-401 l2:x-2@a l3:x-1@a`},
	"a place was lost within less than the shortest TTL": {"fifo", `
		a acquire 20- w-1 s-
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x line 540-541 b100 l2:x-2@a l3:x-1@a`},
	"a place was lost, and who stood before stands there still": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1 s-
		x line 30-31 l1:x-1@a l2:x-2@a
		x line 940-941 l1:x-1@a l3:x-2@a`},
	"a session's place was lost, and its lease was not": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x line 940-941 l2:x-2@a l3:x-1@a`},
	"overtaken in line, and its lease lived on": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2@a l2:x-3@a
		h release 70-75 done t1
		b release 85-90 done t2
		x line 110-111 l1:x-9@a kj`},
	"overtaken in line, and told less than the shortest TTL after it was seen there": {"fifo", `
		h acquire 0-10 granted t1 u5000
		a acquire 20-600 granted t3 u5000 w-1 s-
		b acquire 21-580 granted t2 u5000 w-1
		x line 30-31 l1:x-2 l2:x-3
		h release 570-575 done t1
		x line 576-577 b560 l1:x-2
		b release 585-590 done t2`},
	"somebody broke the lock before, and a place was lost": {"fifo", `
		a acquire 20- w-1
		b acquire 21- w-1
		c force 10-11 done
		x line 2000-2001 l1:x-1@a l2:x-2@a
		x line 2040-2041 l2:x-2@a l3:x-1@a`},
	"granted by the store itself, and still in line": {"fifo", `
		a acquire 0-10 granted t200 u500 w-1
		x line 20-21 t200 l1:x-1`},
	"granted, and still in line": {"fifo", `
		a acquire 0-10 granted t1 u500 w-1
		x line 30-31 l1:x-1 l2:x-9`},
	"granted, and the same attempt still in line, in a fault": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20- w-1
		b acquire 21-80 granted t2 u500 w-1
		x fault 22-28
		x line 30-31 t1 ah l1:x-2@a#p l2:x-3@a#q
		h release 70-75 done t1
		x line 86-87 t2 aq l1:x-2@a#p l2:x-3@a#q`},
	"granted, in line again under another lease, and the same attempt still in line": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20- w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 t1 ah l1:x-2@a#p l2:x-3@a#q
		x line 50-51 t1 ah l1:x-2@a#p l3:x-3@b#r
		h release 70-75 done t1
		x line 86-87 t2 ar l1:x-2@a#p l3:x-3@b#r`},
	"granted, the same attempt still in line, and the lock was given up since": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20- w-1
		b acquire 21-80 granted t2 u500 w-1
		x fault 22-28
		h release 70-75 done t1
		x line 86-87 t2 ar l3:x-2@b#p l4:x-9@b#s
		b release 88-90 done t2
		x line 95-96 l2:x-3@a#r l3:x-2@b#p`},
	"granted, and an earlier attempt in line for too long": {"fifo", `
		a acquire 20- w-1
		b acquire 21-80 granted t2 u9000 w-1
		x line 2000-2001 t2 ar l1:x-1@a#p l2:x-2@a#q`},
	"granted, and an earlier attempt in line for too long after a fault": {"fifo", `
		a acquire 20- w-1
		b acquire 21-80 granted t2 u90000 w-1
		x fault 22-28
		x line 60100-60101 t2 ar l1:x-1@a#p l2:x-2@a#q`},
	"granted, an attempt in line for too long after a fault, and nobody saw which": {"fifo", `
		a acquire 20- w-1
		b acquire 21-80 granted t2 u90000 w-1
		x fault 22-28
		x line 60100-60101 l1:x-1@a#p l2:x-2@a#q`},
	"a line in no order": {"fifo", `
		x line 30-31 l2:x-8 l1:x-9`},
	"a slow hand-off": {"hand-off", `
		a acquire 0-10 granted t1 u9000
		b acquire 5-3000 granted t2 u9000 w-1
		a release 20-30 done t1`},
	"slow, and the machine was not so slow": {"hand-off", `
		a acquire 0-10 granted t1 u9000
		b acquire 5-3000 granted t2 u9000 w-1
		x slow 100-200
		x slow 300-350
		a release 20-30 done t1`},
	"slow, and the machine was slow before": {"hand-off", `
		a acquire 0-10 granted t1 u9000
		b acquire 5-3000 granted t2 u9000 w-1
		x slow 11-29
		x slow 3001-3500
		a release 20-30 done t1`},
	"slow after a drop": {"hand-off", `
		a acquire 0-10 granted t1 u9000
		b acquire 5-3000 granted t2 u9000 w-1
		a drop 20-30`},
}

func TestBadHistories(t *testing.T) {
	for name, c := range bad {
		t.Run(name, func(t *testing.T) {
			ops := script(t, c.text)
			r := All(ops, DefaultRules())
			want := strings.Replace(c.broken, "model", "model porcupine", 1) // both see it
			if got := strings.Join(rules(r), " "); got != want {
				t.Errorf("broken: %q, want %q", got, want)
			}
			var page bytes.Buffer
			if err := HTML(&page, ops, DefaultRules(), r.Violations); err != nil || page.Len() == 0 {
				t.Errorf("a page of %d bytes, %v", page.Len(), err)
			}
		})
	}
}

// TestAnIdleCampaign: one in which too little happened does not pass.
func TestAnIdleCampaign(t *testing.T) {
	r := DefaultRules()
	r.Least = Counts{Grants: 2, Unknown: 1, Refusals: 1}
	got := All(script(t, `
		a acquire 0-10 granted t1 u500
		b acquire 20-30 held`), r)
	if len(got.Violations) != 2 || rules(got)[0] != "traffic" {
		t.Errorf("%+v", got)
	}
}

// TestLongHistories: one wrong answer is seen among thousands that are right.
func TestLongHistories(t *testing.T) {
	const n = 2000
	long := func(wrong int) (ops []history.Op) {
		for i := range n {
			from := int64(i+1) * int64(10*time.Millisecond)
			grant := history.Op{
				ID: "a", Process: "app", Session: "s", Kind: history.Acquire, Key: "k", Call: from - int64(time.Second),
				Return: from + 2, Outcome: history.Granted, Token: int64(i + 1), Until: from + int64(time.Hour), Wait: -1,
			}
			if i == wrong {
				grant.Return = from - int64(time.Millisecond) - 1
			}
			release := history.Op{
				ID: "r", Process: "app", Session: "s", Kind: history.Release, Key: "k", Call: from + int64(9*time.Millisecond),
				Return: from + int64(12*time.Millisecond), Outcome: history.Done, Token: int64(i + 1),
			}
			ops = append(ops, grant, release)
		}
		slices.SortFunc(ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
		return ops
	}
	if err := All(long(-1), DefaultRules()).Err(); err != nil {
		t.Error(err)
	}
	for _, wrong := range []int{1, n / 2, n - 1} {
		if got := strings.Join(rules(All(long(wrong), DefaultRules())), " "); got != "exclusion model porcupine" {
			t.Errorf("grant %d overlaps the one before, and broken is %q", wrong, got)
		}
	}
}

// TestEnough: a load has done its part when there is enough to judge, and not for ever more.
func TestEnough(t *testing.T) {
	r := DefaultRules()
	r.Least = Counts{Grants: 1, Searched: 1}
	if ops := script(t, `
		a acquire 0-10 held`); Enough(ops, r) {
		t.Error("no grant is enough")
	}
	if ops := script(t, `
		a acquire 0-10 granted t1 u500`); !Enough(ops, r) {
		t.Error("one grant is not enough")
	}
}
