package redis

import (
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// leasesPerCall limits the leases of one call.
const leasesPerCall = 1000

// OpenLeases implements [cas.Backend]. It is repeated after a lost answer, because a lease that is opened twice is one.
func (b *Server) OpenLeases(ctx context.Context, leases []cas.NewLease) (store.History, error) {
	told := b.newTold()
	name := "open"
	if allEnd := !slices.ContainsFunc(leases, func(l cas.NewLease) bool { return !l.Ends }); allEnd {
		name = "open_for_hand_off" // a function that a server without room carries out, too
	}
	err := b.everywhere(ctx, "open", name, told, len(leases), func(from, to int) []any {
		var args []any
		for _, l := range leases[from:to] {
			args = append(args, l.ID[:], max(1, l.TTL.Milliseconds()), b.noted(l.TTL, l.Instance != ""), l.Instance)
		}
		return args
	}, func(int, int, []any) error { return nil })
	for _, l := range leases {
		if err == nil && l.Instance != "" && !b.config.Quick { // nobody relies on a lease before
			b.history.opened(l.TTL)
		}
	}
	return b.together(told), err
}

// everywhere makes a call about leases in each partition.
func (b *Server) everywhere(ctx context.Context, op, name string, told *told, n int, args func(from, to int) []any, read func(part, from int, answer []any) error) error {
	return each(b.all(), op, true, func(part int, _ []int) error {
		did := false
		for from := 0; from < n; from += leasesPerCall {
			to := min(n, from+leasesPerCall)
			answer, _, err := b.call(ctx, op, name, repeats, part, told, args(from, to)...)
			if err == nil {
				err = read(part, from, answer)
			}
			if err != nil {
				return cas.Failed(op, err, did || store.OutcomeUnknown(err))
			}
			did = true
		}
		return nil
	})
}

// Renew implements [cas.Backend]. A lease lives if it lives in all partitions.
func (b *Server) Renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, store.History, error) {
	extended := make([]int, len(leases)) // in how many partitions
	told := b.newTold()
	var mu sync.Mutex
	err := b.everywhere(ctx, "renew", "renew", told, len(leases), func(from, to int) []any { return ids(leases[from:to]) },
		func(_, from int, answer []any) error {
			mu.Lock()
			defer mu.Unlock()
			for i, one := range answer {
				if n, _ := one.(int64); n == 1 && from+i < len(leases) {
					extended[from+i]++
				}
			}
			return nil
		})
	var renewed []store.LeaseID
	for i, id := range leases {
		if extended[i] == len(b.parts) {
			renewed = append(renewed, id)
		}
	}
	return renewed, b.together(told), err
}

func ids(leases []store.LeaseID) []any {
	args := make([]any, len(leases))
	for i := range leases {
		args[i] = leases[i][:]
	}
	return args
}

// Revoke implements [cas.Backend].
func (b *Server) Revoke(ctx context.Context, leases []store.LeaseID) error {
	return b.everywhere(ctx, "revoke", "revoke", nil, len(leases), func(from, to int) []any { return ids(leases[from:to]) },
		func(int, int, []any) error { return nil })
}

// Opened implements [cas.Backend].
func (b *Server) Opened(ctx context.Context, instance string) ([]store.LeaseID, error) {
	var mu sync.Mutex
	var found []store.LeaseID
	err := each(b.all(), "opened", false, func(part int, _ []int) error {
		answer, _, err := b.call(ctx, "opened", "opened", repeats, part, nil, instance)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, one := range answer {
			text, _ := one.(string)
			id, err := uuid.FromBytes([]byte(text))
			if err != nil {
				return classify("opened", errFormat, false)
			}
			if !slices.Contains(found, id) {
				found = append(found, id)
			}
		}
		return nil
	})
	return found, err
}
