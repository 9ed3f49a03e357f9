package check

import (
	"strings"
	"testing"
)

// badShared are histories of shared keys in which something is wrong, and the rules that must say so.
var badShared = map[string]struct{ broken, text string }{
	"one holder too many": {"permits", `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 0-10 granted t2 u500 m2 q2
		c acquire 20-30 granted t3 u500 m2 q1
		a lost 600-600 t1`},
	"one too many by a hair": {"permits", `
		a acquire 0-10 granted t1 u500 m1 q1
		b acquire 20-499 granted t2 u900 m1 q1 w-1`},
	"two in a slot": {"permits", `
		a acquire 0-10 granted t1 u500 m3 q1
		b acquire 20-30 granted t2 u500 m3 q1`},
	"two in a slot, for one was confirmed": {"permits", `
		a acquire 0-10 granted t1 u100 m3 q1
		a confirm 90-95 held t1 u900
		b acquire 120-130 granted t2 u500 m3 q1`},
	"a slot that there is not": {"permits", `
		a acquire 0-10 granted t1 u500 m3 q4`},
	"a permit without a slot": {"permits", `
		a acquire 0-10 granted t1 u500 m3`},
	"a slot without a limit": {"permits", `
		a acquire 0-10 granted t1 u500 m q1`},
	"two limits": {"permits", `
		a acquire 0-10 granted t1 u500 m3 q1
		b acquire 20-30 granted t2 u500 m4 q2`},
	"a limit beside none": {"permits", `
		a acquire 0-10 granted t1 u500 m
		b acquire 20-30 granted t2 u500 m4 q2`},
	"a writer among readers": {"permits", `
		a acquire 0-10 granted t1 u500 m
		b acquire 20-30 granted t2 u500`},
	"a reader beside a writer": {"permits", `
		z acquire 0-5 granted t1 u8 m
		a acquire 10-20 granted t2 u500
		b acquire 30-40 granted t3 u500 m w-1`},
	"a reader beside a writer that asks to share only later": {"permits", `
		a acquire 10-20 granted t2 u500
		b acquire 30-40 granted t3 u500 m w-1
		a downgrade 50-60 held t2 u500`},
	"a writer beside one that shares": {"permits", `
		z acquire 0-5 granted t1 u8 m
		a acquire 10-20 granted t2 u500
		a downgrade 50-60 held t2 u500
		b acquire 70-80 granted t3 u500`},
	"a downgraded lock is one too many": {"permits", `
		z acquire 0-5 granted t1 u8 m1 q1
		a acquire 10-20 granted t2 u500
		a downgrade 50-60 held t2 u500 m1 q1
		b acquire 70-80 granted t3 u500 m1 q1`},
	"a downgraded lock has the slot of another one": {"permits", `
		z acquire 0-5 granted t1 u8 m2 q1
		a acquire 10-20 granted t2 u500
		a downgrade 50-60 held t2 u500 m2 q1
		b acquire 70-80 granted t3 u500 m2 q1`},
	"a sidecar was killed, and it was another one": {"permits", `
		a acquire 0-10 granted t1 u500 m1 q1 n1
		x ended 20-30 n2
		b acquire 15-40 granted t2 u500 w-1 m1 q1 n1`},
	"a smaller token": {"tokens", `
		a acquire 0-10 granted t7 u500 m
		b acquire 20-30 granted t6 u500 m`},
	"a token twice": {"tokens", `
		a acquire 0-10 granted t7 u500 m
		b acquire 0-10 granted t7 u500 m`},
	"the holder of a slot is refused": {"fencing", `
		a acquire 0-10 granted t1 u500 m2 q1
		a write 20-30 stale t1 q1`},
	"a slot's fence that is none": {"fencing", `
		a acquire 0-10 granted t1 u100 m2 q1
		b acquire 120-150 granted t2 u500 w-1 m2 q1
		b write 160-161 done t2 q1
		a write 162-163 done t1 q1`},
	"a share is lost without a reason": {"shares", `
		a acquire 0-10 granted t1 u500 m
		a lost 100-100 t1`},
	"a share is not held any more, without a reason": {"shares", `
		a acquire 0-10 granted t1 u500 m
		a confirm 20-30 nothold t1`},
	"a share is not there at its release, without a reason": {"shares", `
		a acquire 0-10 granted t1 u500 m
		a release 20-30 nothold t1`},
	"a lock cannot be shared, for it is lost without a reason": {"shares", `
		z acquire 0-5 granted t1 u8 m
		a acquire 10-20 granted t2 u500
		a downgrade 50-60 nothold t2`},
	"held again after its release": {"shares", `
		a acquire 0-10 granted t1 u500 m
		a release 20-30 done t1
		a confirm 40-50 held t1 u600`},
	"it shows as free, and is shared": {"shares", `
		a acquire 0-10 granted t1 u500 m
		b get 20-30 free`},
	"it shows too few holders": {"shares", `
		a acquire 0-10 granted t1 u500 m
		b acquire 0-10 granted t2 u500 m
		c get 20-30 held m h1`},
	"it shows too many holders": {"shares", `
		a acquire 0-10 granted t1 u500 m
		a release 20-30 done t1
		b acquire 35-40 granted t2 u500 m
		c get 50-60 held m h2`},
	"refused, and there is a permit": {"shares", `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 20-30 held m2`},
	"refused, and a permit was given up before": {"shares", `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 0-10 granted t2 u500 m2 q2
		a release 20-30 done t1
		c acquire 40-50 held m2`},
	"a reader is refused beside readers": {"shares", `
		a acquire 0-10 granted t1 u500 m
		b acquire 20-30 held m`},
	"a reader is refused when the writer shares": {"shares", `
		z acquire 0-5 granted t1 u8 m
		z release 6-7 done t1
		a acquire 10-20 granted t2 u500
		a downgrade 50-60 held t2 u500
		b acquire 70-80 held m`},
	"a writer is refused by nobody": {"shares", `
		a acquire 0-10 granted t1 u500 m
		a release 20-30 done t1
		b acquire 40-50 held`},
	"a call waits in vain before a quiet time, and after one": {"shares", `
		a acquire 0-10 granted t1 u500 m3 q1
		x quiet 15-20
		b acquire 21-80 timeout w60 m3
		x quiet 81-200`},
	"a reader waited in vain beside readers": {"shares", `
		a acquire 0-10 granted t1 u500 m
		b acquire 20-80 timeout m w60`},
	"refused a permit, without an ask": {"shares", `
		a acquire 0-10 granted t1 u500 m3 q1
		b acquire 20-22 timeout w1 o m3`},
	"refused by those with the same limit": {"shares", `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 20-30 mismatch m2`},
	"one reader overtakes another one": {"fifo", `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1 m
		b acquire 21-80 granted t2 u500 w-1 m
		x line 30-31 h1 l1:x-2 l2:x-3
		h release 70-75 done t1`},
	"a reader overtakes a writer that waits among readers": {"fifo", `
		h acquire 0-10 granted t1 u500 m
		a acquire 20-100 granted t3 u500 w-1
		x line 30-31 m h1 l1:x-2
		b acquire 40-45 granted t2 u50 m
		h release 70-75 done t1`},
	"a newcomer overtakes in a semaphore": {"fifo", `
		h acquire 0-10 granted t1 u500 m1 q1
		a acquire 20-100 granted t3 u500 w-1 m1 q1
		x line 30-31 m1 h1 l1:x-2
		h release 35-36 done t1
		b acquire 40-45 granted t2 u50 m1 q1`},
	"a reader at the head is not let in beside readers": {"fifo", `
		a acquire 0-10 granted t1 u9000 m
		w acquire 11-300 timeout w290
		b acquire 20- w-1 m
		x line 400-401 m h1 l2:x-3 l3:x-9
		x line 1500-1501 m h1 l2:x-3 l3:x-9`},
	"a permit is free, and the first waits": {"fifo", `
		a acquire 0-10 granted t1 u9000 m2 q1
		b acquire 20- w-1 m2
		x line 400-401 m2 h1 l2:x-2
		x line 1500-1501 m2 h1 l2:x-2`},
	"all is free, and the first waits": {"fifo", `
		a acquire 0-10 granted t1 u9000 m2 q1
		a release 20-30 done t1
		b acquire 20- w-1
		x line 400-401 l2:x-3
		x line 1500-1501 l2:x-3`},
	"readers are let in one by one": {"rooms", `
		h acquire 0-10 granted t1 u9000
		a acquire 20-80 granted t2 u9000 w-1 m
		b acquire 21-1600 granted t3 u9000 w-1 m
		h release 70-75 done t1`},
	"a permit is free, and nobody gets it": {"rooms", `
		a acquire 0-10 granted t1 u9000 m2 q1
		b acquire 0-10 granted t2 u9000 m2 q2
		c acquire 20-3000 granted t3 u9000 m2 q1 w-1
		a release 40-50 done t1
		b release 2900-2950 done t2`},
	"nobody else is there, and it waits": {"rooms", `
		c acquire 20-3000 granted t3 u9000 m2 q1 w-1`},
	"the writer shares, and the reader waits": {"rooms", `
		h acquire 0-10 granted t1 u9000
		b acquire 20-3000 granted t2 u9000 m w-1
		h downgrade 40-50 held t1 u9000
		h release 2900-2950 done t1`},
}

// goodShared are histories of shared keys in which nothing is wrong.
var goodShared = map[string]string{
	"as many as may": `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 0-10 granted t2 u500 m2 q2
		c acquire 20-30 held m2
		d get 40-50 held m2 h2
		a release 60-70 done t1
		c acquire 65-80 granted t3 u500 m2 q1`,
	"a permit is taken before the answer to its release": `
		a acquire 0-10 granted t1 u500 m1 q1
		c acquire 5-22 granted t2 u500 m1 q1 w-1
		a release 20-30 done t1`,
	"a permit was taken while a call waited behind another one": `
		a acquire 0-10 granted t1 u500 m1 q1
		a release 20-30 done t1
		b acquire 40-70 granted t2 u500 w-1 m1 q1
		c acquire 45-47 timeout w1 o m1`,
	"a permit of a lease that ran out": `
		a acquire 0-10 granted t1 u500 m1 q1
		b acquire 20-501 granted t2 u900 m1 q1 w-1`,
	"a permit of a connection that was dropped": `
		a acquire 0-10 granted t1 u500 m1 q1
		a drop 20-21
		b acquire 15-40 granted t2 u500 m1 q1 w-1`,
	"a permit of a sidecar that was killed": `
		a acquire 0-10 granted t1 u500 m1 q1 n1
		x ended 20-30 n1
		b acquire 15-40 granted t2 u500 w-1 m1 q1 n2`,
	"two permits, each with its own": `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 0-10 granted t2 u500 m2 q2
		b write 20-21 done t2 q2
		a write 22-23 done t1 q1`,
	"another limit, when nobody is there": `
		a acquire 0-10 granted t1 u500 m2 q1
		b acquire 12-15 mismatch m3
		a release 20-30 done t1
		b acquire 40-50 granted t2 u500 m3 q1
		a acquire 60-70 mismatch m2`,
	"a writer, and then readers": `
		h acquire 0-10 granted t1 u500
		a acquire 20-80 granted t2 u500 w-1 m
		b acquire 21-81 granted t3 u500 w-1 m
		x line 30-31 h1 l1:x-2 l2:x-3
		h release 70-75 done t1
		c get 90-91 held m h2`,
	"a writer shares": `
		h acquire 0-10 granted t1 u500
		a acquire 20-80 granted t2 u500 w-1 m2 q2
		h downgrade 70-75 held t1 u500 m2 q1
		c get 90-91 held m h2
		d acquire 95-96 held`,
	"a writer shares, and hears no answer": `
		h acquire 0-10 granted t1 u500
		a acquire 20-80 granted t2 u500 w-1 m2 q2
		h downgrade 70- t1`,
	"a reader that waits behind a writer": `
		h acquire 0-10 granted t1 u900 m
		a acquire 20-100 timeout w80
		x line 30-31 m h1 l1:x-2 l3:x-5
		b acquire 25-110 granted t3 u500 w-1 m
		c acquire 50-55 held m`,
	"the first is let in when the one before it has left": `
		a acquire 0-10 granted t1 u9000 m
		w acquire 11-300 timeout w290
		b acquire 20-310 granted t2 u9000 w-1 m
		x line 301-302 m h1 l2:x-3 l3:x-9
		c acquire 400-
		x line 1500-1501 m h2 l3:x-9`,
	"who fits, and is dead, waits": `
		a acquire 0-10 granted t1 u9000 m
		b acquire 20- w-1 m
		x line 400-401 m h1 d2:x-2
		x line 1500-1501 m h1 d2:x-2`,
	"a permit was over before its call was told, and the call waits at the end": `
		h acquire 0-10 granted t1 u9000 m1 q1
		a acquire 20- w-1 s- m1
		b acquire 21-90 granted t3 u9000 w-1 m1 q1
		h release 32-35 done t1
		x line 30-31 m1 h1 l1:x-2@a#p l2:x-3@a#q
		b release 95-96 done t3
		x line 535-536 m1 h1 b33 l3:x-2@a#p
		x line 540-541 m1 h1 l1:x-9@a kj`,
	"a share that was broken": `
		a acquire 0-10 granted t1 u500 m
		b force 20-40 done
		a lost 30-30 t1
		b acquire 35-60 granted t2 u500`,
	"a permit that was left for some time by an unknown one": `
		a acquire 0- m1
		b acquire 20-30 held m1
		c get 40-50 held m1 h1`,
	"a release that a crash forgot": `
		a acquire 0-10 granted t1 u9000 m1 q1
		a release 20-30 done t1
		x forgets 40-60
		b get 70-75 held m1 h1
		b acquire 80-85 held m1`,
	"a free key is kept in a quiet time": `
		a acquire 0-10 granted t1 u500 m3 q1
		a release 20-30 done t1
		x quiet 40-600
		b acquire 50-120 timeout w60 m3
		d acquire 130-800 granted t2 u900 m3 q1 w-1`,
	"nothing was promised": `
		a acquire 0-10 granted t1 u500 m1 q1
		x unpromised 20-600
		b acquire 30-40 granted t2 u500 m1 q1
		a confirm 50-60 nothold t1`,
}

func TestBadSharedHistories(t *testing.T) {
	for name, c := range badShared {
		t.Run(name, func(t *testing.T) {
			r := All(script(t, c.text), DefaultRules())
			if got := strings.Join(rules(r), " "); got != c.broken {
				t.Errorf("broken: %q, want %q: %v", got, c.broken, r.Err())
			}
		})
	}
}

func TestGoodSharedHistories(t *testing.T) {
	for name, text := range goodShared {
		t.Run(name, func(t *testing.T) {
			if err := All(script(t, text), DefaultRules()).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
