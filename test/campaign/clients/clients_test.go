package clients

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var (
	seed    = flag.Uint64("seed", 1, "what programs do, and which faults strike")
	length  = flag.Duration("length", 0, "for how long faults strike; what is longer than a minute is run in new worlds, each with the next seed; 0: until each kind has struck once")
	store   = flag.String("store", string(world.PostgreSQL), "run on this store: postgres, etcd, mysql, redis or redis-cluster")
	names   = flag.String("programs", strings.Join(programs[:len(programs)-2], ","), "the programs, separated by commas, of "+strings.Join(programs, ", "))
	faults  = flag.String("faults", "", "the faults to strike with, separated by commas; without: all that a client can feel")
	forms   = flag.String("forms", "", "the ways to get locks that programs use, separated by commas; without: all")
	rejudge = flag.String("judge", "", "only judge the history in this folder")
)

// most is for how long faults strike one world.
const most = time.Minute

func TestClients(t *testing.T) {
	if *rejudge != "" {
		judgeAgain(t, *rejudge)
		return
	}
	if os.Getuid() != 0 {
		t.Fatal("the campaign runs as root, on Linux, with the right to mount: it mounts a disk that can be full")
	}
	terms := Terms{Store: world.Engine(*store), Programs: list(*names), Forms: list(*forms)}
	if !slices.Contains(world.Engines, terms.Store) {
		t.Fatalf("-store %q: allowed are %q", terms.Store, world.Engines)
	}
	for _, program := range terms.Programs {
		if !slices.Contains(programs, program) {
			t.Fatalf("-programs %q: allowed are %q", program, programs)
		}
	}
	terms.Kinds = fault.Felt(terms.Store)
	if *faults != "" {
		var err error
		if terms.Kinds, err = fault.Among(terms.Kinds, list(*faults)); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := world.Build(world.Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(terms.Programs, "go") {
		if terms.Go, err = buildGo(world.Folder(t)); err != nil {
			t.Fatal(err)
		}
	}
	terms.Seed = *seed
	for left := *length; left == *length || left > 0 && !t.Failed(); left -= most {
		terms.Length = min(left, most)
		t.Run(fmt.Sprintf("seed=%d", terms.Seed), func(t *testing.T) { run(t, binary, terms) })
		terms.Seed++
	}
}

// judgeAgain judges a history that was kept.
func judgeAgain(t *testing.T, folder string) {
	t.Helper()
	report, err := JudgeFolder(folder, rulesOf(Terms{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range slices.Sorted(maps.Keys(report.Counts)) {
		t.Logf("%-12s %+v", program, report.Counts[program])
	}
	for _, v := range report.Violations {
		t.Error(v)
	}
}

// list is what a flag lists.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
}
