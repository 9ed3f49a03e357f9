package lanes

import (
	"context"

	"github.com/locksidecar/locksidecar/store"
)

// Amendment is what a holder wants of the store: to be known as the holder if it has Served, then to check and change its lock,
// and then to make it a share. The store has an operation for each, but they have one lane. So those of a lock are carried out, and
// their answers are recorded, in the order of the calls.
type Amendment struct {
	store.Adoption
	Share bool
}

// Amend is the amendment that only checks a lock, or changes it, and that the store knows.
func Amend(c store.Change) Amendment { return Amendment{Adoption: store.Adoption{Change: c}} }

// amender carries out the amendments of a batch, with up to three operations. A lock has one amendment in it.
func amender(st store.Store) func(context.Context, []Amendment) ([]store.Amended, error) {
	return func(ctx context.Context, all []Amendment) ([]store.Amended, error) {
		b := amendments{all: all, answers: make([]store.Amended, len(all))}
		adopted := func(i int) bool { return len(all[i].Served) > 0 }
		adoption := func(i int) store.Adoption { return all[i].Adoption }
		change := func(i int) store.Change { return all[i].Change }
		err := some(ctx, &b, st.Adopt, adoption, adopted)
		if err == nil {
			err = some(ctx, &b, st.Downgrade, change, func(i int) bool {
				return all[i].Share && (!adopted(i) || b.answers[i].Status == store.Holds)
			})
		}
		if err == nil {
			err = some(ctx, &b, st.Amend, change, func(i int) bool { return !all[i].Share && !adopted(i) })
		}
		return b.answers, err
	}
}

type amendments struct {
	all     []Amendment
	answers []store.Amended
	did     bool // an operation was carried out
}

// some carries out the chosen amendments by one operation. If an earlier operation was carried out for others, an error leaves
// the outcome of the batch unknown.
func some[T any](
	ctx context.Context, b *amendments, do func(context.Context, []T) ([]store.Amended, error), item func(i int) T, chosen func(i int) bool,
) error {
	var which []int
	var items []T
	for i := range b.all {
		if chosen(i) {
			which, items = append(which, i), append(items, item(i))
		}
	}
	if len(which) == 0 {
		return nil
	}
	answers, err := do(ctx, items)
	switch {
	case err != nil && b.did:
		return &store.Error{Op: "amend", Err: err, Unknown: true}
	case err != nil:
		return err
	}
	b.did = true
	for n, i := range which {
		b.answers[i] = answers[n]
	}
	return nil
}
