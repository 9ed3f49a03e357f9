package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rule says to which part of the budget a sample of processor time belongs.
type rule struct {
	part string
	// frames are texts of which a frame of the stack begins with one, as
	// "function file:line".
	frames []string
	// under, if set, must stand in another frame of the stack.
	under string
}

const (
	ours = "github.com/locksidecar/locksidecar/"
	wire = "proxy/internal/wire/"
)

// anywhere are rules for work that the runtime does on somebody's behalf: a frame in
// any place of the stack decides. The first rule that fits counts.
var anywhere = []rule{
	{part: "garbage collector", frames: []string{"runtime.gc", "runtime.bgsweep", "runtime.bgscavenge", "runtime.deductSweepCredit", "runtime.(*mheap).reclaim", "runtime.wbBuf", "runtime.markroot"}},
	{part: "clocks", frames: []string{"runtime.nanotime", "runtime.walltime", "time.now", "time.Now", "time.Since", "golang.org/x/sys/unix.ClockGettime"}},
	{part: "scheduler: waking, sleeping, epoll", frames: []string{
		"runtime.mcall", "runtime.mstart", "runtime.schedule", "runtime.findRunnable", "runtime.futex", "runtime.goready", "runtime.ready", "runtime.gopark", "runtime.netpoll",
		"runtime.wakep", "runtime.newproc", "runtime.sysmon", "runtime.notewakeup", "runtime.(*timer", "runtime.resetForSleep", "runtime.selectgo", "runtime.chansend", "runtime.chanrecv", "runtime.closechan",
		"runtime.semacquire", "runtime.semrelease", "runtime.exitsyscall", "runtime.entersyscall", "runtime.reentersyscall", "runtime.asyncPreempt", "internal/runtime/syscall/linux.Epoll",
	}},
	{part: "allocation", frames: []string{"runtime.mallocgc", "runtime.newobject", "runtime.makeslice", "runtime.growslice", "runtime.newarray"}},
	{part: "system calls: the database's socket", frames: systemCall, under: "github.com/jackc/pgx/"},
	{part: "system calls: the apps' sockets", frames: systemCall},
}

var systemCall = []string{"internal/runtime/syscall", "syscall.Syscall", "syscall.RawSyscall", "syscall.syscall", "syscall.read", "syscall.write", "golang.org/x/sys/unix.", "runtime/internal/syscall"}

// nearest are rules for code that works for itself: the innermost frame that any rule
// fits decides, so that what it calls in the runtime and the library counts as its own.
var nearest = []rule{
	{part: "parse: the request's lock, parameters, body", frames: []string{ours + "proxy/route", ours + "proxy/headers", ours + wire + "target", ours + wire + "params", ours + wire + "body", ours + wire + "headers", ours + wire + "options"}},
	{part: "answer", frames: []string{ours + wire + "encode", ours + wire + "problem", ours + "proxy/deliver"}},
	{part: "connections and calls", frames: []string{ours + "proxy/"}},
	{part: "held cache", frames: []string{ours + "lease/memory"}},
	{part: "sessions, leases, attempts", frames: []string{ours + "lease/"}},
	{part: "batch: the lanes", frames: []string{ours + "batcher/"}},
	{part: "store", frames: []string{ours + "store/"}},
	{part: "figures and traces", frames: []string{ours + "internal/", "go.opentelemetry.io/", "github.com/exaring/otelpgx", "github.com/prometheus/"}},
	{part: "encode and decode (pgx)", frames: []string{"github.com/jackc/"}},
	{part: "HTTP (fasthttp)", frames: []string{"github.com/valyala/fasthttp"}},
	{part: "Go's sockets and poller", frames: []string{"internal/poll.", "net.", "os.", "bufio."}},
}

// otherPart is what no rule fits.
const otherPart = "other"

// partOf is the part of a stack, whose innermost frame is the first.
func partOf(stack []string) string {
	for _, r := range anywhere {
		if slices.ContainsFunc(stack, r.fits) && (r.under == "" || has(stack, r.under)) {
			return r.part
		}
	}
	for _, frame := range stack {
		for _, r := range nearest {
			if r.fits(frame) {
				return r.part
			}
		}
	}
	return otherPart
}

// fits tells whether a frame is one of the rule's. Our own code is told apart by files,
// so the place counts as well as the function.
func (r rule) fits(frame string) bool {
	function, place := cutFrame(frame)
	for _, begin := range r.frames {
		if strings.HasPrefix(function, begin) || strings.HasPrefix(place, begin) {
			return true
		}
	}
	return false
}

// cutFrame cuts a frame into the function, whose type parameters may have spaces, and
// its file and line.
func cutFrame(frame string) (function, place string) {
	at := strings.LastIndexByte(frame, ' ')
	return frame[:max(at, 0)], frame[at+1:]
}

// share is a part of a whole.
type share struct {
	name  string
	value float64
}

// fold sums up samples by a name of each, the largest first.
func fold(samples []sample, name func(stack []string) string) (parts []share, total float64) {
	sums := make(map[string]float64)
	for _, s := range samples {
		sums[name(s.stack)] += s.value
		total += s.value
	}
	for _, n := range slices.Sorted(maps.Keys(sums)) {
		parts = append(parts, share{n, sums[n]})
	}
	slices.SortStableFunc(parts, func(a, b share) int { return cmp.Compare(b.value, a.value) })
	return parts, total
}

// siteOf is the place that asked: the innermost frame that is not of Go's own
// libraries, or the outermost of all.
func siteOf(stack []string) string {
	for _, frame := range stack {
		function, _ := cutFrame(frame)
		if host, _, ok := strings.Cut(function, "/"); ok && strings.Contains(host, ".") {
			return shortened(frame)
		}
	}
	return shortened(stack[len(stack)-1])
}

// shortened leaves out what every frame has, and type parameters.
func shortened(frame string) string {
	function, place := cutFrame(strings.TrimPrefix(frame, ours))
	if before, rest, ok := strings.Cut(function, "["); ok {
		function = before + rest[strings.LastIndexByte(rest, ']')+1:]
	}
	return function + " (" + place[strings.LastIndexByte(place, '/')+1:] + ")"
}

// budget is what parts cost under several loads: a table with a column for each.
type budget struct {
	columns []string
	parts   []string // in the order of the rules
	figures map[string]map[string]float64
}

// note adds a column. The shares after the parts stand below them.
func (b *budget) note(column string, parts []share, below ...share) {
	if b.figures == nil {
		b.figures = make(map[string]map[string]float64)
		for _, r := range slices.Concat(nearest, anywhere) {
			b.parts = append(b.parts, r.part)
		}
		b.parts = append(b.parts, otherPart)
		for _, s := range below {
			b.parts = append(b.parts, s.name)
		}
	}
	b.columns = append(b.columns, column)
	for _, s := range slices.Concat(parts, below) {
		if b.figures[s.name] == nil {
			b.figures[s.name] = make(map[string]float64)
		}
		b.figures[s.name][column] = s.value
	}
}

// table shows the parts that cost something.
func (b *budget) table() string {
	var t strings.Builder
	fmt.Fprintf(&t, "\n| part (µs each) | %s |\n|---|%s\n", strings.Join(b.columns, " | "), strings.Repeat("--:|", len(b.columns)))
	for _, p := range b.parts {
		if b.figures[p] == nil {
			continue
		}
		fmt.Fprintf(&t, "| %s |", p)
		for _, c := range b.columns {
			fmt.Fprintf(&t, " %.1f |", b.figures[p][c])
		}
		t.WriteString("\n")
	}
	return t.String()
}
