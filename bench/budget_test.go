package main

import (
	"slices"
	"testing"
)

const traces = `File: locksidecar
Type: cpu
Duration: 1s, Total samples = 60000us ( 6%)
-----------+-------------------------------------------------------
   10000us   runtime.memmove runtime/memmove_amd64.s:300
             github.com/locksidecar/locksidecar/proxy/internal/wire.AppendGrant github.com/locksidecar/locksidecar/proxy/internal/wire/encode.go:20
             github.com/locksidecar/locksidecar/proxy.(*call).acquire github.com/locksidecar/locksidecar/proxy/locks.go:9
-----------+-------------------------------------------------------
      key:  value
   20000us   runtime.memmove runtime/memmove_amd64.s:300 (inline)
             github.com/locksidecar/locksidecar/batcher.(*Lane[go.shape.struct { A int; B string },go.shape.int]).begin github.com/locksidecar/locksidecar/batcher/batcher.go:9
-----------+-------------------------------------------------------
   30000us   runtime.memmove runtime/memmove_amd64.s:300
             github.com/locksidecar/locksidecar/proxy/internal/wire.AppendGrant github.com/locksidecar/locksidecar/proxy/internal/wire/encode.go:20
`

func TestTracesAreFolded(t *testing.T) {
	samples, err := parseTraces([]byte(traces), "us")
	if err != nil {
		t.Fatal(err)
	}
	parts, total := fold(samples, partOf)
	if want := []share{{"answer", 40000}, {"batch: the lanes", 20000}}; total != 60000 || !slices.Equal(parts, want) {
		t.Errorf("%v of %v, want %v", parts, total, want)
	}
	sites, _ := fold(samples, siteOf)
	if want := []share{{"proxy/internal/wire.AppendGrant (encode.go:20)", 40000}, {"batcher.(*Lane).begin (batcher.go:9)", 20000}}; !slices.Equal(sites, want) {
		t.Errorf("%v, want %v", sites, want)
	}
	if _, err := parseTraces([]byte("-----\n   much   f f.go:1\n"), "us"); err == nil {
		t.Error("a value that is no number was taken")
	}
}

func TestPartsOfTheBudget(t *testing.T) {
	const (
		syscall6 = "internal/runtime/syscall/linux.Syscall6 internal/runtime/syscall/linux/asm_linux_amd64.s:36"
		pgxRead  = "github.com/jackc/pgx/v5/pgconn.(*PgConn).receiveMessage github.com/jackc/pgx/v5@v5.12.0/pgconn/pgconn.go:500"
		fasthttp = "github.com/valyala/fasthttp.(*Server).serveConn github.com/valyala/fasthttp@v1.74.0/server.go:2000"
		ask      = ours + "lease.(*Manager).ask " + ours + "lease/acquire.go:30"
		refusal  = ours + "lease.(*denied).get " + ours + "lease/memory.go:50"
		malloc   = "runtime.mallocgc runtime/malloc.go:1100"
		poll     = "internal/poll.(*FD).Read internal/poll/fd_unix.go:160"
	)
	for _, c := range []struct {
		want  string
		stack []string
	}{
		{"system calls: the database's socket", []string{syscall6, "syscall.read syscall/zsyscall.go:1", poll, pgxRead, ask}},
		{"system calls: the apps' sockets", []string{syscall6, "syscall.write syscall/zsyscall.go:1", poll, fasthttp}},
		{"scheduler: waking, sleeping, epoll", []string{syscall6, "internal/runtime/syscall/linux.EpollWait internal/x.go:1", "runtime.netpoll runtime/netpoll_epoll.go:120", "runtime.findRunnable runtime/proc.go:3", "runtime.mcall runtime/asm.s:1"}},
		{"garbage collector", []string{"runtime.scanobject runtime/mgcmark.go:1", "runtime.gcAssistAlloc runtime/mgcmark.go:2", malloc, ask}},
		{"allocation", []string{"runtime.memclr runtime/x.s:1", malloc, ask}},
		{"clocks", []string{syscall6, "golang.org/x/sys/unix.ClockGettime golang.org/x/sys/unix/z.go:1", ask}},
		{"sessions, leases, attempts", []string{"runtime.mapaccess1 runtime/map.go:1", ask, fasthttp}},
		{"held cache", []string{refusal, ask}},
		{"encode and decode (pgx)", []string{"strconv.ParseInt strconv/atoi.go:1", pgxRead, ask}},
		{"Go's sockets and poller", []string{poll, pgxRead, ask}},
		{otherPart, []string{"main.main cmd/main.go:1"}},
	} {
		if got := partOf(c.stack); got != c.want {
			t.Errorf("%q is %q, want %q", c.stack, got, c.want)
		}
	}
}

func TestBudgetHasAColumnForEachLoad(t *testing.T) {
	var b budget
	b.note("P1", []share{{"answer", 2}, {otherPart, 1}}, share{"the sidecar", 3})
	b.note("P3", []share{{"batch: the lanes", 5}, {"answer", 4}}, share{"the sidecar", 9})
	const want = "\n| part (µs each) | P1 | P3 |\n|---|--:|--:|\n| answer | 2.0 | 4.0 |\n| batch: the lanes | 0.0 | 5.0 |\n| other | 1.0 | 0.0 |\n| the sidecar | 3.0 | 9.0 |\n"
	if got := b.table(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
