package campaign

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var (
	seed   = flag.Uint64("seed", 0, "run the campaign of this seed; 0: those that CI runs")
	length = flag.Duration("length", round, "for how long faults strike; what is longer than a round is run in rounds, each with the next seed")
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
	kinds := fault.Kinds
	if *faults != "" {
		var err error
		if kinds, err = fault.Find(strings.Split(*faults, ",")); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := world.Build(world.Folder(t))
	if err != nil {
		t.Fatal(err)
	}
	campaign := func(seed uint64, length time.Duration) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			run(t, binary, fault.Terms{Seed: seed, Length: length, Kinds: kinds})
		})
	}
	if *seed == 0 {
		for _, s := range seeds {
			campaign(s, *length)
		}
		return
	}
	for s, left := *seed, *length; left > 0 && !t.Failed(); s, left = s+1, left-round {
		campaign(s, min(left, round))
	}
}
