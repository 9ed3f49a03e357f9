package campaign

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var (
	seed   = flag.Uint64("seed", 0, "run the campaign of this seed; 0: those that CI runs")
	length = flag.Duration("length", 0, "for how long faults strike; what is longer than a round is run in rounds, each with the next seed; 0: until each kind has struck once")
	store  = flag.String("store", string(world.PostgreSQL), "run the campaign on this store: postgres, etcd, mysql, redis or redis-cluster")
	pooled = flag.Bool("pooled", false, "put PgBouncer in transaction mode before the database, past which the sidecars listen")
	keep   = flag.String("keep", defaultKeep, "for how long each sidecar keeps released keys, separated by commas; 0: it keeps none")
	faults = flag.String("faults", "", "the faults to strike with, separated by commas; all without")
)

// round is how long faults strike one world.
const round = 150 * time.Second

// seeds are what CI runs.
var seeds = []uint64{1}

func TestMain(m *testing.M) {
	if task := os.Getenv(appEnv); task != "" {
		if err := runApp(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

func TestCampaign(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("the campaign runs as root, on Linux, with the right to mount: it mounts a disk that can be full")
	}
	engine := world.Engine(*store)
	if !slices.Contains(world.Engines, engine) {
		t.Fatalf("-store %q: allowed are %q", engine, world.Engines)
	}
	binary, err := world.Build(world.Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	rounds(t, binary, engine)
}

func rounds(t *testing.T, binary string, engine world.Engine) {
	keep, err := keepOf(*keep)
	if err != nil {
		t.Fatal(err)
	}
	kinds := kindsOf(engine, keep)
	if *faults != "" {
		if kinds, err = fault.Among(kinds, strings.Split(*faults, ",")); err != nil {
			t.Fatalf("%v on %s", err, engine)
		}
	}
	campaign := func(terms fault.Terms) {
		terms.Store, terms.Kinds, terms.Pooled, terms.Keepers = engine, kinds, *pooled, keepers(keep)
		t.Run(fmt.Sprintf("seed=%d", terms.Seed), func(t *testing.T) { run(t, binary, keep, terms) })
	}
	switch {
	case *length > 0:
		for s, left := *seed, *length; left > 0 && !t.Failed(); s, left = s+1, left-round {
			campaign(fault.Terms{Seed: s, Length: min(left, round)})
		}
	case *seed > 0:
		campaign(fault.Terms{Seed: *seed, Brief: true})
	default:
		kinds = onceOf(engine, keep)
		for _, s := range seeds {
			campaign(fault.Terms{Seed: s, Brief: true})
		}
	}
}
