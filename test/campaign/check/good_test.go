package check

import "testing"

// good are histories in which nothing is wrong.
var good = map[string]string{
	"one after the other": `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 25-40 granted t2 u500
		b release 50-60 done t2`,
	"the answer to a release comes after the next grant": `
		a acquire 0-10 granted t1 u500
		b acquire 5-22 granted t2 u500 w-1
		a release 20-30 done t1
		b release 50-60 done t2`,
	"who has waited for long enough leaves, and is granted it nevertheless": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t4 u500 w50
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2 l2:x-3
		c acquire 40-90 granted t3 u500 w-1
		h release 70-75 done t1
		b release 82-83 done t2
		c release 92-93 done t3`,
	"a lease that ran out": `
		a acquire 0-10 granted t1 u500
		b acquire 20-501 granted t2 u900 w-1`,
	"a lease that ran out by the sidecar's clock, and ends in the store later": `
		a acquire 0-10 granted t1 u500
		a lost 501-501 t1
		b acquire 510-520 held
		a confirm 525-530 nothold t1
		b acquire 535-540 held
		b acquire 600-610 granted t2 u900`,
	"a lock that a replaced server has forgotten, though its session believes in it": `
		a acquire 0-10 granted t1 u500
		x replaced 20-700
		c get 100-110 free
		b acquire 120-130 timeout w-1
		b acquire 501-510 granted t2 u900`,
	"a free key is kept in a quiet time": `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		x quiet 40-600
		b acquire 150-220 timeout w60
		c acquire 200-210 held
		d acquire 230-800 granted t2 u900 w-1`,
	"a bind:ttl lock that a replaced server has forgotten": `
		a acquire 0-10 granted t1 u500 s-
		x replaced 20-400
		b acquire 100-110 granted t2 u500`,
	"confirmed, and run out later": `
		a acquire 0-10 granted t1 u500
		a confirm 400-410 held t1 u800
		b acquire 20-801 granted t2 u990 w-1`,
	"a release that was not answered": `
		a acquire 0-10 granted t1 u500
		a release 20- t1
		b acquire 20-40 granted t2 u500`,
	"a release that was not answered, and not carried out": `
		a acquire 0-10 granted t1 u500
		a release 20- t1
		b acquire 30-40 held
		b acquire 50-501 granted t2 u900`,
	"a dropped connection": `
		a acquire 0-10 granted t1 u500
		a drop 20-21
		b acquire 15-40 granted t2 u500 w-1`,
	"a sidecar that was killed": `
		a acquire 0-10 granted t1 u500 n1
		x ended 20-30 n1
		b acquire 15-40 granted t2 u500 w-1 n2`,
	"a machine was suspended, and the lease lives on in the store": `
		a acquire 0-10 granted t1 u500 n1
		x ended 20-30 n1
		a confirm 40-45 nothold t1 n1
		b acquire 50-60 held n2
		b acquire 480-520 granted t2 u900 n2`,
	"an app that was killed": `
		a acquire 0-10 granted t1 u500 pone
		x ended 20-30 pone
		b acquire 15-40 granted t2 u500 w-1 ptwo`,
	"a lock that was broken": `
		a acquire 0-10 granted t1 u500
		b force 20-40 done
		a lost 30-30 t1
		b acquire 35-60 granted t2 u500`,
	"breaking it was not answered": `
		a acquire 0-10 granted t1 u500
		b force 20-
		b acquire 35-60 granted t2 u500
		a confirm 70-80 nothold t1`,
	"the first attempt of a repeated acquire had it for a while": `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 40-3000 granted t3 u9000 w-1 s- r1
		c acquire 1000-1010 held
		c acquire 1500-1600 timeout w100
		d acquire 2000-2010 granted t2 u2500
		d release 2020-2030 done t2`,
	"a bind:ttl grant ran out in an outage before its client heard of it": `
		a acquire 0-10 granted t1 u5000
		b acquire 5-2000 granted t9 u3000 w-1 s-
		a release 20-30 done t1
		c acquire 100-150 timeout w50
		x fault 200-1500
		d acquire 1600-1610 granted t3 u5000
		d release 1620-1630 done t3`,
	"an acquire of unknown outcome had it for a while": `
		a acquire 0-10 w0
		b acquire 15-30 held
		c get 16-20 held
		b acquire 40-60 granted t9 u500`,
	"a wait in vain had it for a moment": `
		a acquire 0-10 granted t1 u500
		b acquire 5-40 timeout w35
		a release 20-30 done t1
		c acquire 42-45 held
		c acquire 50-60 granted t5 u500`,
	"a call for several gave a part back": `
		a acquire 0-50 held g1
		a acquire 0-50 held g1 kj
		d acquire 0-4 granted t7 u500 kj
		b acquire 10-30 held
		b acquire 60-70 granted t8 u500`,
	"waited in vain for an answer of the store": `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		x fault 35-95
		b acquire 40-90 timeout w50 o`,
	"waited in vain for one who has gone": `
		a acquire 0-10 granted t1 u500
		b acquire 20-70 timeout w50 o
		a release 60-65 done t1`,
	"waited in vain behind a call that is asking": `
		a acquire 0-30 granted t1 u500 w-1
		b acquire 5-7 timeout w1 o`,
	"a cached refusal, just after the release": `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		b acquire 40-41 held c`,
	"tokens with gaps, answers in another order": `
		a acquire 0-100 granted t10 u50 w-1
		b acquire 0-90 granted t20 u500 w-1
		a release 110-120 nothold t10`,
	"a stale write, after the lease": `
		a acquire 0-10 granted t1 u100
		b acquire 20-150 granted t2 u500 w-1
		b write 160-161 done t2
		a write 162-163 stale t1`,
	"stale, for its release is on the way": `
		a acquire 0-10 granted t1 u500
		a release 20- t1
		b acquire 21-30 granted t2 u500
		b write 31-32 done t2
		a write 33-34 stale t1`,
	"first in, first out; who leaves is passed over": `
		h acquire 0-10 granted t1 u500
		a acquire 20-80 granted t2 u500 w-1
		b acquire 21-60 timeout w39
		c acquire 22-100 granted t3 u500 w-1
		x line 30-31 l1:x-2 l2:x-3 l5:x-4
		h release 70-75 done t1
		a release 85-90 done t2`,
	"a place that was lost in a fault": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2 l2:x-3
		x fault 40-50
		h release 70-75 done t1
		b release 85-90 done t2`,
	"served by its sidecar, and its place is still there": `
		h acquire 0-10 granted t100 u500
		a acquire 20-60 granted t200 u500 w-1
		b acquire 21-75 granted t201 u500 w-1
		x line 30-31 t100 l1:x-2 l2:x-3
		h release 50-55 done t100
		a release 70-72 done t200
		x line 80-81 t200 l2:x-3
		b release 85-90 done t201`,
	"who asks again stands in line again": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1 s- r1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2 l2:x-3
		x line 40-41 l2:x-3 l3:x-2/1
		h release 70-75 done t1
		b release 85-90 done t2`,
	"places that were lost in a fault, and their lease was not": `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x fault 40-50
		x line 20000-20001 l3:x-2@a l4:x-1@a`,
	"an attempt had the key, and its grant was over before its call was told": `
		a acquire 20- w-1 s-
		b acquire 21- w-1
		x line 30-31 t1 ah l1:x-1@a#p l2:x-2@a#q
		x line 40-41 t2 ap b35 l2:x-2@a#q l3:x-3@a#r
		x line 540-541 t3 aq b530 l3:x-3@a#r l4:x-1@a#p`,
	"the lease of one in line was seen dead, and another got the lock before": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2@a l2:x-3@b
		x line 40-41 l1:x-3@a kj
		x line 50-51 d1:x-2@a l2:x-3@b
		h release 70-75 done t1
		b release 85-90 done t2
		x line 110-111 l4:x-9@b kj`,
	"the lease of one in line was not seen alive later, and another got the lock before": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2@a l2:x-3@b
		h release 70-75 done t1
		b release 85-90 done t2
		x line 110-111 l4:x-9@b kj`,
	"the lease of one in line was not seen alive later, and another asked later and got the lock before": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		x line 30-31 l1:x-2@a
		b acquire 32-80 granted t2 u500 w-1
		h release 70-75 done t1
		b release 85-90 done t2`,
	"somebody broke the lock that one was about to be given": `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		c force 33-36 done
		x line 40-41 l2:x-2@a l3:x-1@a`,
	"a grant of the first in line was over before its call was told, and the call was granted again": `
		h acquire 0-10 granted t1 u500
		a acquire 20-590 granted t4 u5000 w-1 s-
		x line 30-31 t1 ah l1:x-2@a#p
		b acquire 40-585 granted t3 u5000 w-1
		x line 60-61 t2 ap b50 l2:x-4@b#q
		h release 45-50 done t1
		b release 586-587 done t3
		x line 600-601 l1:x-9@a kj`,
	"an attempt had the key before, and stands in line again behind another": `
		h acquire 0-10 granted t1 u500
		a acquire 20-90 granted t5 u500 w-1 r1
		b acquire 35-85 granted t4 u500 w-1
		h release 12-15 done t1
		x line 30-31 t2 ap
		c acquire 32-50 granted t3 u500 w-1
		x line 60-61 t3 as l4:x-3@b#q l5:x-2/1@a#p
		c release 70-75 done t3
		b release 86-87 done t4`,
	"a call for several stands in line again": `
		a acquire 20- w-1 g7
		b acquire 21- w-1
		x line 30-31 l1:7@a l2:x-2@a
		x line 40-41 l2:x-2@a l3:7@a`,
	"a call for several lost another key by force, and stands in line again": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1 g7
		a acquire 20-100 granted t4 u500 w-1 g7 kj
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:7 l2:x-4
		c force 40-45 done kj
		h release 70-75 done t1
		b release 85-90 done t2`,
	"a place that was lost with its lease": `
		h acquire 0-10 granted t1 u500
		a acquire 20-100 granted t3 u500 w-1
		b acquire 21-80 granted t2 u500 w-1
		x line 30-31 l1:x-2@a l2:x-3@a
		x line 40-41 l2:x-3@a l3:x-2@b
		h release 70-75 done t1
		b release 85-90 done t2`,
	"granted, and an earlier attempt under a lost lease still in line": `
		h acquire 0-10 granted t1 u500
		a acquire 20- w-1
		b acquire 21-80 granted t2 u500 w-1
		x fault 22-28
		x line 30-31 t1 ah l1:x-2@a#p l2:x-3@a#q
		x line 50-51 t1 ah l1:x-2@a#p l2:x-3@a#q l3:x-3@b#r
		h release 70-75 done t1
		x line 86-87 t2 ar l1:x-2@a#p l2:x-3@a#q`,
	"granted, an earlier attempt still in line, and the lock was given up since": `
		h acquire 0-10 granted t1 u500
		a acquire 20- w-1
		b acquire 21-80 granted t2 u500 w-1
		x fault 22-28
		h release 70-75 done t1
		x line 86-87 t2 ar l3:x-2@b#p l4:x-9@b#s
		b release 88-90 done t2
		x line 95-96 l2:x-3@a#q l3:x-2@b#p`,
	"granted, an attempt in line in a fault, and nobody saw which": `
		h acquire 0-10 granted t1 u500
		a acquire 20- w-1
		b acquire 21-80 granted t2 u500 w-1
		x fault 22-28
		h release 70-75 done t1
		b release 82-84 done t2
		x line 86-87 l1:x-2@a#p l2:x-3@a#q`,
	"a release that a crash forgot": `
		a acquire 0-10 granted t1 u9000
		a release 20-30 done t1
		x forgets 40-60
		b get 70-75 held
		b acquire 80-85 held
		b acquire 90-95 granted t2 u9000`,
	"told, in line, and a failover forgot that": `
		h acquire 0-10 granted t1 u9000
		a acquire 20-60 granted t2 u9000 w-1
		h release 50-55 done t1
		x replaced 40-100
		x line 110-111 l1:x-2`,
	"a slow hand-off on a slow machine": `
		a acquire 0-10 granted t1 u9000
		b acquire 5-3000 granted t2 u9000 w-1
		x slow 100-350
		a release 20-30 done t1`,
	"places that were lost while the machine stood still": `
		a acquire 20- w-1
		b acquire 21- w-1
		x line 30-31 l1:x-1@a l2:x-2@a
		x slow 40-1100
		x line 20000-20001 l3:x-2@a l4:x-1@a`,
	"a slow hand-off in a fault": `
		a acquire 0-10 granted t1 u9000
		b acquire 5-3000 granted t2 u9000 w-1
		x fault 15-200
		a release 20-30 done t1`,
	"slow, for a call for several had it": `
		a acquire 0-10 granted t1 u9000
		c acquire 4-2990 timeout g1 w2986
		b acquire 5-3000 granted t2 u9000 w-1
		a release 20-30 done t1`,
	"exclusion was not promised": `
		a acquire 0-10 granted t1 u500
		x unpromised 20-600
		b acquire 30-40 granted t2 u500
		a confirm 50-60 held t1 u500
		a release 70-80 nothold t1
		b release 70-80 done t2`,
	"exclusion was not promised, and a sidecar believes that it has released": `
		a acquire 0-10 granted t1 u500
		x unpromised 20-600
		b acquire 30-40 granted t2 u500
		a release 50-60 done t1
		b confirm 65-66 held t2 u500
		b release 70-80 done t2`,
	"who asked for what another one has not": `
		a acquire 0-10 granted t1 u500
		a release 20-30 done t1
		a confirm 40-50 nothold t1
		a release 40-50 nothold t1
		b get 40-50 free`,
	"bind:ttl outlives its connection and its app": `
		a acquire 0-10 granted t1 u500 s- pone
		a drop 20-30
		x ended 20-30 pone
		b acquire 40-50 held
		b acquire 60-501 granted t2 u900 w-1`,
}

func TestGoodHistories(t *testing.T) {
	for name, text := range good {
		t.Run(name, func(t *testing.T) {
			if err := All(script(t, text), DefaultRules()).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}
