package clients

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var (
	seed   = flag.Uint64("seed", 1, "what programs do, and which faults strike")
	rounds = flag.Int("rounds", 1, "how often faults strike for a while, and all is looked at afterwards")
	length = flag.Duration("round", 0, "for how long faults strike in a round; 0: until each kind has struck once")
	store  = flag.String("store", string(world.PostgreSQL), "run on this store: postgres, etcd, mysql, redis or redis-cluster")
	names  = flag.String("programs", "py-threads,py-asyncio,py-gevent,py-processes,node", "the programs, separated by commas")
	faults = flag.String("faults", "", "the faults to strike with, separated by commas; without: all that a client can feel")
	forms  = flag.String("forms", "", "the ways to get locks that programs use, separated by commas; without: all")
	judge  = flag.String("judge", "", "judge the history in this folder")
)

func TestClients(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("the campaign runs as root, on Linux, with the right to mount: it mounts a disk that can be full")
	}
	engine := world.Engine(*store)
	if !slices.Contains(world.Engines, engine) {
		t.Fatalf("-store %q: allowed are %q", engine, world.Engines)
	}
	kinds := fault.Felt(engine)
	if *faults != "" {
		var err error
		if kinds, err = fault.Among(kinds, list(*faults)); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := world.Build(world.Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	run(t, binary, Terms{Seed: *seed, Rounds: *rounds, Length: *length, Programs: list(*names), Forms: list(*forms), Kinds: kinds, Store: engine})
}

// TestJudge judges a history that was kept.
func TestJudge(t *testing.T) {
	if *judge == "" {
		t.Skip("-judge names no folder")
	}
	r := rulesOf(Terms{})
	report, err := JudgeFolder(*judge, r)
	if err != nil {
		t.Fatal(err)
	}
	for program, counts := range report.Counts {
		fmt.Fprintf(os.Stdout, "%-12s %+v\n", program, counts)
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}

// list is what a flag lists.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
