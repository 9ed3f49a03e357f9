package failover

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

var (
	failovers = flag.Int("failovers", 3, "how many failovers; the first three are of each kind")
	binary    = flag.String("binary", "", "the sidecar; it is built without")
	only      = flag.String("kind", "", "kill, stop or behind; all without")
)

func TestFailover(t *testing.T) {
	s := newScene(t, *binary)
	for i := range *failovers {
		k := kinds[i%len(kinds)]
		if *only != "" {
			k = kind(*only)
		}
		began := time.Now()
		r := &round{scene: s, kind: k}
		name := fmt.Sprintf("%d-%s", i+1, k)
		if err := r.run(name); err != nil {
			t.Errorf("%s: %v", name, err)
			break
		}
		fmt.Printf("failover %s: %s, %+v\n", name, time.Since(began).Round(time.Millisecond), r.counts)
	}
	fmt.Print(s.summary())
	if t.Failed() {
		return
	}
	s.leave(t)
}

// leave lets all go, and looks for what is left.
func (s *scene) leave(t *testing.T) {
	t.Helper()
	var pods []string
	for i, sc := range s.sidecars {
		pods = append(pods, sc.Name())
		if err := s.keepers[i].release(keeperKey(i)); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := load.EveryKey(ctx, s.sockets()[0], keys, 4*ttl); err != nil {
		t.Error(err)
	}
	s.stopProbes()
	orphans, err := check.Orphans(ctx, stored.Postgres(s.leader().URL(s.database)), pods, 4*ttl)
	if err != nil {
		t.Error(err)
	}
	for _, o := range orphans {
		t.Error(o)
	}
}
