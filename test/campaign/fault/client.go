package fault

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// feltKinds strike programs on the clients only.
var feltKinds = []Kind{
	{Name: "few-descriptors", part: app, weight: 2, least: time.Second, most: 4 * time.Second, strike: fewDescriptors},
}

// Felt are the kinds on a store that a client can feel: what strikes its program and its sidecar, and what lets the store hang,
// fail or restart.
func Felt(store world.Engine) []Kind {
	alone := []string{"latency", "narrow", "flap", "suspend"} // of the store's network, and what only a sidecar feels
	felt := slices.DeleteFunc(Kinds(store), func(k Kind) bool {
		hangs := strings.HasPrefix(k.Name, "freeze-") || strings.HasPrefix(k.Name, "restart-")
		return slices.Contains(alone, k.Name) || k.part == server && !hangs || strings.HasPrefix(k.Name, "cut-") || strings.HasPrefix(k.Name, "clock-")
	})
	return append(felt, feltKinds...)
}

// fewDescriptors leaves a program no more descriptors than it has, but for one.
func fewDescriptors(s *strike) (int, error) {
	pid := s.app().Pid()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, err
	}
	highest := 0
	for _, fd := range open {
		var number int
		if _, err := fmt.Sscanf(fd.Name(), "%d", &number); err == nil {
			highest = max(highest, number)
		}
	}
	var before unix.Rlimit
	few := func(limit uint64) error {
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: before.Max}, nil)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		return 0, err
	}
	if err := few(min(before.Cur, uint64(highest)+2)); err != nil {
		return 0, err
	}
	s.once()
	return healed(1, few(before.Cur))
}
