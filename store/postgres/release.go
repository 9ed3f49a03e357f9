package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// standings are the words of the function judge.
var standings = map[string]store.Standing{
	"holds":    store.Holds,
	"other":    store.OtherSession,
	"released": store.Released,
	"expired":  store.Expired,
	"unknown":  store.UnknownToken,
}

// verdictRow is a row of the functions release and amend.
type verdictRow struct {
	lockColumns
	ord   int
	state string

	// What became of a contended lock, with release.
	outcome                  zeronull.Text
	expired                  []uuid.UUID
	nextGrant, nextLease     zeronull.UUID
	nextInstance             zeronull.Text
	nextToken                zeronull.Int8
	nextAcquired, nextExpiry zeronull.Timestamptz
}

func (v *verdictRow) verdict(key string) store.Verdict {
	verdict := store.Verdict{Standing: standings[v.state]}
	if verdict.Standing == store.Holds {
		verdict.Lock = v.asHeld(key)
	}
	return verdict
}

// Release frees locks, or hands them to their first living waiters.
func (s *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.begin(ctx, "release")
	if err != nil {
		return nil, err
	}
	defer cancel()
	verdicts := make([]store.Verdict, len(claims))
	if err := o.free(ctx, claims, verdicts); err != nil {
		return nil, err
	}
	var rest []int
	for i := range verdicts {
		if verdicts[i].Standing == 0 {
			rest = append(rest, i)
		}
	}
	if len(rest) == 0 {
		return verdicts, nil
	}
	if err := o.judge(ctx, claims, rest, verdicts); err != nil {
		return nil, err
	}
	return verdicts, nil
}

// freed is a row of the statements that free locks.
type freed struct {
	lockColumns
	key string
}

// free releases the locks of sessions that hold and for which nobody waits, in one
// statement: nearly all of them.
func (o *operation) free(ctx context.Context, claims []store.Claim, verdicts []store.Verdict) error {
	which := make([]int, 0, len(claims))
	byKey := make(map[string]int, len(claims))
	for i, c := range claims {
		if c.Lease != (store.LeaseID{}) {
			which = append(which, i)
			byKey[c.Key] = i
		}
	}
	namespace := o.config.Identity.Namespace
	var sql string
	var args []any
	switch len(which) {
	case 0:
		return nil
	case 1:
		c := claims[which[0]]
		sql, args = sqlReleaseOne, []any{namespace, c.Key, c.Token, [16]byte(c.Lease)}
	default:
		keys, tokens, leases := claimColumns(which, func(i int) store.Claim { return claims[i] })
		sql, args = sqlReleaseMany, []any{namespace, keys, tokens, leases}
	}
	found, err := query(ctx, o, sql, args, func(rows pgx.Rows, f *freed) error { return rows.Scan(f.with(&f.key)...) })
	if err != nil {
		return err
	}
	o.partly = o.partly || len(found) > 0
	for i := range found {
		f := &found[i]
		verdicts[byKey[f.key]] = store.Verdict{Standing: store.Holds, Lock: f.asHeld(f.key)}
	}
	return nil
}

// judge looks at the claims that are left with their rows locked: those that hold
// are freed or handed off.
func (o *operation) judge(ctx context.Context, claims []store.Claim, rest []int, verdicts []store.Verdict) error {
	namespace := o.config.Identity.Namespace
	keys, tokens, leases := claimColumns(rest, func(i int) store.Claim { return claims[i] })
	found, err := query(ctx, o, sqlRelease, []any{namespace, keys, tokens, leases},
		func(rows pgx.Rows, v *verdictRow) error {
			return rows.Scan(append(v.with(&v.ord, &v.state), &v.outcome, &v.expired,
				&v.nextGrant, &v.nextLease, &v.nextInstance, &v.nextToken, &v.nextAcquired, &v.nextExpiry)...)
		})
	if err != nil {
		return err
	}
	if len(found) != len(rest) {
		return o.fail(errShort, true)
	}
	var keysLeft []held
	var expired []uuid.UUID
	for i := range found {
		v := &found[i]
		n := rest[v.ord-1]
		verdicts[n] = v.verdict(claims[n].Key)
		o.partly = o.partly || v.outcome != ""
		expired = append(expired, v.expired...)
		switch string(v.outcome) {
		case handedOver:
			o.tell(v.handOver(namespace, claims[n].Key))
		case expiredWaiters:
			keysLeft = append(keysLeft, held{namespace, claims[n].Key, uuid.UUID(v.lease), &claims[n].Token})
		}
	}
	return o.finish(ctx, keysLeft, unique(expired))
}

func (v *verdictRow) handOver(namespace, key string) handOver {
	return handOver{
		namespace: namespace, key: key, outcome: string(v.outcome), grant: v.nextGrant, lease: v.nextLease,
		instance: v.nextInstance, token: v.nextToken, acquiredAt: v.nextAcquired, expiresAt: v.nextExpiry, now: v.now,
	}
}

// claimColumns are claims as the arrays that statements take.
func claimColumns[T any](items []T, claim func(T) store.Claim) (keys []string, tokens []int64, leases [][16]byte) {
	keys, tokens, leases = make([]string, len(items)), make([]int64, len(items)), make([][16]byte, len(items))
	for i, item := range items {
		c := claim(item)
		keys[i], tokens[i], leases[i] = c.Key, c.Token, c.Lease
	}
	return keys, tokens, leases
}

// Amend checks claims, and changes data and remaining times.
func (s *Store) Amend(ctx context.Context, changes []store.Change) ([]store.Verdict, error) {
	if len(changes) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.begin(ctx, "amend")
	if err != nil {
		return nil, err
	}
	defer cancel()
	keys, tokens, leases := claimColumns(changes, func(c store.Change) store.Claim { return c.Claim })
	ttls, sets, datas := make([]time.Duration, len(changes)), make([]bool, len(changes)), make([]*string, len(changes))
	for i, c := range changes {
		ttls[i], sets[i], datas[i] = c.TTL, c.SetData, textOf(c.Data)
	}
	found, err := query(ctx, o, sqlAmend, []any{s.config.Identity.Namespace, keys, tokens, leases, ttls, sets, datas},
		func(rows pgx.Rows, v *verdictRow) error { return rows.Scan(v.with(&v.ord, &v.state)...) })
	if err != nil {
		return nil, err
	}
	if len(found) != len(changes) {
		return nil, o.fail(errShort, true)
	}
	verdicts := make([]store.Verdict, len(changes))
	for i := range found {
		verdicts[found[i].ord-1] = found[i].verdict(keys[found[i].ord-1])
	}
	return verdicts, nil
}
