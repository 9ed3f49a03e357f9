package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// doors is one key of a sidecar, with a model of its holder and its waiters.
type doors struct {
	t        *rapid.T
	r        *rig
	sessions []*holdings.Session
	ended    map[*holdings.Session]bool

	in    *visit // nil if the key is free
	line  []*visitor
	story []string
}

// visit is a grant.
type visit struct {
	s           *holdings.Session
	owner       string
	entries     int
	g           types.Grant // the last grant
	all         map[int]types.Grant
	undelivered map[int]bool
}

func newVisit(s *holdings.Session, req types.Request) *visit {
	return &visit{s: s, owner: req.Owner, undelivered: map[int]bool{}, all: map[int]types.Grant{}}
}

// exit removes the last entry, and the undelivered entries below it.
func (v *visit) exit() {
	for v.entries--; v.undelivered[v.entries]; v.entries-- {
		delete(v.undelivered, v.entries)
	}
}

// visitor is a call that waits.
type visitor struct {
	s      *holdings.Session
	req    types.Request
	a      *answer
	cancel context.CancelFunc
}

func (d *doors) notef(format string, args ...any) {
	d.story = append(d.story, fmt.Sprintf(format, args...))
}

func (d *doors) wrongf(format string, args ...any) {
	d.t.Fatalf(format+"\n%s", append(args, strings.Join(d.story, "\n"))...)
}

func (d *doors) drawVisitor() (*holdings.Session, types.Request) {
	req := types.Request{Key: "k", NoCache: rapid.Bool().Draw(d.t, "no-cache")}
	if req.Owner = rapid.SampledFrom([]string{"", "o", "p"}).Draw(d.t, "owner"); req.Owner != "" {
		req.Reentrant = rapid.IntRange(0, 3).Draw(d.t, "reentrant") > 0
	}
	return rapid.SampledFrom(d.sessions).Draw(d.t, "session"), req
}

// mayEnter is the rule of reentry.
func (d *doors) mayEnter(s *holdings.Session, req types.Request) bool {
	return d.in != nil && d.in.s == s && req.Reentrant && req.Owner == d.in.owner && !d.ended[s]
}

// try asks once without waiting.
func (d *doors) try() {
	s, req := d.drawVisitor()
	d.notef("try %s %+v", s.Name(), req)
	g, err := d.r.m.Acquire(context.Background(), s, req)
	var held *types.HeldError
	switch {
	case d.ended[s]:
		if !errors.Is(err, types.ErrSessionEnded) {
			d.wrongf("got %+v, %v", g, err)
		}
	case d.in == nil:
		d.in = newVisit(s, req)
		d.entered(g, err)
	case d.mayEnter(s, req):
		d.entered(g, err)
	case !errors.As(err, &held):
		d.wrongf("got %+v, %v", g, err)
	}
}

// entered checks a call that got the lock.
func (d *doors) entered(g types.Grant, err error) {
	d.in.entries++
	if err != nil || g.Reentry != d.in.entries || d.in.entries > 1 && g.Token != d.in.g.Token {
		d.wrongf("got %+v, %v, want entry %d of token %d", g, err, d.in.entries, d.in.g.Token)
	}
	d.in.g, d.in.all[g.Reentry] = g, g
}

// wait queues a call, or reenters.
func (d *doors) wait() {
	s, req := d.drawVisitor()
	req.Wait = types.WaitForever
	d.notef("wait %s %+v", s.Name(), req)
	ctx, cancel := context.WithCancel(context.Background())
	v := &visitor{s: s, req: req, a: d.r.ask(ctx, s, req), cancel: cancel}
	synctest.Wait()
	switch {
	case d.ended[s]:
		if !v.a.isOver() || !errors.Is(v.a.err, types.ErrSessionEnded) {
			d.wrongf("got %+v, %v", v.a.g, v.a.err)
		}
	case d.in == nil:
		d.in = newVisit(s, req)
		d.over(v)
		d.entered(v.a.g, v.a.err)
	case d.mayEnter(s, req):
		d.over(v)
		d.entered(v.a.g, v.a.err)
	default:
		d.line = append(d.line, v)
	}
}

func (d *doors) over(v *visitor) {
	if !v.a.isOver() {
		d.wrongf("%s %+v still waits", v.s.Name(), v.req)
	}
}

// leave releases an entry, sometimes by its number, sometimes by a wrong one.
func (d *doors) leave() {
	if d.in == nil {
		return
	}
	n := max(rapid.IntRange(-1, 1).Draw(d.t, "off")+d.in.entries, 0)
	if rapid.Bool().Draw(d.t, "unnamed") {
		n = 0
	}
	d.notef("leave %d of %d", n, d.in.entries)
	got, err := d.r.exit(d.in.s, d.in.g, n)
	switch {
	case n != 0 && n != d.in.entries:
		if wrong, ok := errors.AsType[*types.ReentryError](err); !ok || wrong.Have != d.in.entries {
			d.wrongf("got %+v, %v", got, err)
		}
	default:
		if d.in.exit(); err != nil || got.Reentry != d.in.entries {
			d.wrongf("got %+v, %v, want %d", got, err, d.in.entries)
		}
		d.handOver()
	}
}

// discard hands back an entry whose answer was not delivered, once.
func (d *doors) discard() {
	if d.in == nil {
		return
	}
	g := d.in.all[rapid.IntRange(1, d.in.entries).Draw(d.t, "entry")]
	if d.in.undelivered[g.Reentry] {
		return
	}
	d.notef("discard %d of %d", g.Reentry, d.in.entries)
	d.r.m.HandBack(d.in.s, g)
	if g.Reentry < d.in.entries {
		d.in.undelivered[g.Reentry] = true
	} else {
		d.in.exit()
	}
	d.handOver()
}

// abandon cancels a wait.
func (d *doors) abandon() {
	if len(d.line) == 0 {
		return
	}
	i := rapid.IntRange(0, len(d.line)-1).Draw(d.t, "waiter")
	d.notef("abandon %d", i)
	d.line[i].cancel()
	<-d.line[i].a.done
	d.line = slices.Delete(d.line, i, i+1)
	synctest.Wait()
}

func (d *doors) endSession() {
	s := rapid.SampledFrom(d.sessions).Draw(d.t, "session")
	d.notef("end %s", s.Name())
	s.End(types.EndDropped)
	d.ended[s] = true
	synctest.Wait()
	d.line = slices.DeleteFunc(d.line, func(v *visitor) bool {
		if v.s == s {
			d.over(v)
		}
		return v.s == s
	})
	if d.in != nil && d.in.s == s {
		d.in.entries = 0
		d.handOver()
	}
	fresh := d.r.explicitSession()
	d.sessions[slices.Index(d.sessions, s)] = fresh
}

// handOver is the result of the release of the last entry. The first waiter and all other waiting
// calls of its owner get the lock.
func (d *doors) handOver() {
	synctest.Wait()
	if d.in.entries > 0 {
		return
	}
	d.in = nil
	if len(d.line) == 0 {
		return
	}
	first := d.line[0]
	d.over(first)
	d.in = newVisit(first.s, first.req)
	d.entered(first.a.g, first.a.err)
	var told []int
	d.line = slices.DeleteFunc(d.line[1:], func(v *visitor) bool {
		if !d.mayEnter(v.s, v.req) {
			return false
		}
		d.over(v)
		if v.a.err != nil || v.a.g.Token != d.in.g.Token {
			d.wrongf("got %+v, %v", v.a.g, v.a.err)
		}
		told = append(told, v.a.g.Reentry)
		d.in.all[v.a.g.Reentry] = v.a.g
		return true
	})
	slices.Sort(told)
	for _, n := range told {
		if d.in.entries++; n != d.in.entries {
			d.wrongf("entered as %v", told)
		}
	}
}

// judge compares the sidecar and the store with the model.
func (d *doors) judge() {
	synctest.Wait()
	for i, v := range d.line {
		if v.a.isOver() {
			d.wrongf("the call at position %d got %+v, %v", i+1, v.a.g, v.a.err)
		}
	}
	lock := d.r.stored("k")
	if lock.QueueLength != len(d.line) { // the store does not yet know which waiters were served
		time.Sleep(attempt.CohortTime)
		synctest.Wait()
		lock = d.r.stored("k")
	}
	if lock.Held != (d.in != nil) || lock.QueueLength != len(d.line) {
		d.wrongf("the store has held %v, %d waiting, want %d", lock.Held, lock.QueueLength, len(d.line))
	}
	if d.in == nil {
		return
	}
	g, err := d.r.m.Amend(context.Background(), d.in.s, types.AmendRequest{Key: "k", Token: d.in.g.Token})
	if err != nil || g.Reentry != d.in.entries {
		d.wrongf("amended: %+v, %v, want entry %d", g, err, d.in.entries)
	}
}

// Calls come and leave at random. The number of entries is that of the model, and the queue is
// first in, first out except for reentry.
// Proves: promise 13
func TestReentryProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(*testing.T) {
			var opts []option
			if rapid.Bool().Draw(rt, "inline") {
				opts = append(opts, inline)
			}
			d := &doors{t: rt, r: newRig(rt, opts...), ended: map[*holdings.Session]bool{}}
			defer func() {
				failed = recover()
				for _, v := range d.line {
					v.cancel()
				}
				d.r.m.Stop()
			}()
			for range 3 {
				d.sessions = append(d.sessions, d.r.explicitSession())
			}
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				steps := []func(){d.try, d.try, d.wait, d.wait, d.wait, d.leave, d.leave, d.leave, d.discard, d.abandon, d.endSession}
				rapid.SampledFrom(steps).Draw(rt, "step")()
				d.judge()
			}
			for _, s := range d.sessions {
				s.End(types.EndDropped)
			}
			d.r.nothingLeft()
		})
		if failed != nil {
			panic(failed)
		}
	})
}
