package postgres

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// claimStatuses are the results of the function claim_status.
var claimStatuses = map[string]store.ClaimStatus{
	"holds":    store.Holds,
	"other":    store.OtherSession,
	"released": store.Released,
	"expired":  store.Expired,
	"unknown":  store.UnknownToken,
	"share":    store.IsShare,
}

// verdictRow is a row of the function release.
type verdictRow struct {
	ord         int
	state       zeronull.Text // empty: a further row of a shared key, about its waiters
	token       zeronull.Int8
	lease       zeronull.UUID
	acquiredAt  zeronull.Timestamptz
	traceparent zeronull.Text
	handOver    handOver // the hand-off; without an outcome there was none
}

func (o *operation) claimName(c *store.Claim) keyName {
	return keyName{o.id.Namespace, c.Key}
}

func (v *verdictRow) verdict() store.Verdict {
	verdict := store.Verdict{Status: claimStatuses[string(v.state)]}
	if verdict.Status == store.Holds {
		verdict.HeldFor = max(0, time.Time(v.handOver.now).Sub(time.Time(v.acquiredAt))) // the clock may have been set back
		verdict.Traceparent = string(v.traceparent)
	}
	return verdict
}

// releaseStep decides some of the claims.
type releaseStep func(o *operation, ctx context.Context, claims []store.Claim, which []int, verdicts []store.Verdict) error

// Release frees locks, or hands them to their first living waiters.
func (s *Store) Release(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	return s.releaseBy(ctx, claims, (*operation).free, (*operation).releaseRest)
}

// releaseFlushed does as Release, with a flush for each claim.
func (s *Store) releaseFlushed(ctx context.Context, claims []store.Claim) ([]store.Verdict, error) {
	return s.releaseBy(ctx, claims, (*operation).releaseRest)
}

// releaseBy takes each step with the claims that the steps before have not decided.
func (s *Store) releaseBy(ctx context.Context, claims []store.Claim, steps ...releaseStep) ([]store.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "release", len(claims))
	if err != nil {
		return nil, err
	}
	defer cancel()
	verdicts := make([]store.Verdict, len(claims))
	name := func(i int) keyName { return o.claimName(&claims[i]) }
	for _, step := range steps {
		var open []int
		for i := range verdicts {
			if verdicts[i].Status == 0 {
				open = append(open, i)
			}
		}
		locked, err := o.aroundLocked(ctx, open, name, func(ctx context.Context, which []int) error {
			return step(o, ctx, claims, which, verdicts)
		})
		if err != nil {
			return nil, err
		}
		for _, i := range locked {
			verdicts[i].Status = store.ClaimRowLocked
		}
	}
	return verdicts, nil
}

type freed struct {
	key     string
	watched bool
}

// free releases locks of sessions without waiters, the usual case, in one statement.
func (o *operation) free(ctx context.Context, claims []store.Claim, open []int, verdicts []store.Verdict) error {
	which := make([]int, 0, len(open))
	byKey := make(map[string]int, len(open))
	for _, i := range open {
		// If a key has several claims, they are of shares, or some are stale.
		if _, again := byKey[claims[i].Key]; again {
			continue
		}
		if c := &claims[i]; o.mayFree(c) {
			which = append(which, i)
			byKey[c.Key] = i
		}
	}
	namespace, flush := o.id.Namespace, o.mustFlush(claims, which)
	var sql statement
	var args []any
	switch len(which) {
	case 0:
		return nil
	case 1:
		c := claims[which[0]]
		sql, args = sqlReleaseOne, []any{namespace, c.Key, c.Token, [16]byte(c.Lease), flush}
	default:
		keys, tokens, leases := claimColumns(claims, which)
		sql, args = sqlReleaseMany, []any{namespace, keys, tokens, leases, flush}
	}
	found, err := query(ctx, o, sql, args, func(rows pgx.Rows, f *freed) error { return rows.Scan(&f.key, &f.watched) })
	if err != nil {
		return err
	}
	o.partly = o.partly || len(found) > 0
	done := make([]store.Claim, len(found))
	for i := range found {
		f := &found[i]
		n := byKey[f.key]
		c := &claims[n]
		done[i] = store.Claim{Key: c.Key, Token: c.Token, Lease: c.Lease}
		verdicts[n] = store.Verdict{Status: store.Holds}
		o.recent.freed(c.Key)
		if f.watched {
			o.tellEnded(o.claimName(c), zeronull.Int8(c.Token), releaseOf(c))
		}
	}
	switch {
	case !flush:
		o.unflushed.add(o.Store, done, o.sent)
	case len(found) > 0:
		o.unflushed.flushed(o.sent)
	}
	return nil
}

// mayFree reports whether it is worth while to free the lock of a claim by a plain UPDATE, which takes nothing if somebody waits.
func (o *operation) mayFree(c *store.Claim) bool {
	switch {
	case byClient(c): // a bind:ttl lock has a lease that ends with it
		return false
	case c.Awaited, len(c.Served) > 0: // there are waiters, or there were
		return false
	default: // what is remembered of the key, or of its row, says that the UPDATE would take nothing, or wait
		return !o.recent.needFunction(c.Key) && !o.foundLocked(c)
	}
}

// mustFlush reports whether releases wait for a flush of the WAL. They do if a release reports an outcome, or if too many
// earlier releases did not wait. Behind a pooler they always wait: it keeps the sidecar's connections open, so the
// sidecar would not notice a crash of the server.
func (o *operation) mustFlush(claims []store.Claim, which []int) bool {
	return o.isPooled() || !o.unflushed.hasRoom(len(which)) ||
		slices.ContainsFunc(which, func(i int) bool { return claims[i].Outcome != store.NoOutcome || claims[i].Result != nil })
}

// foundLocked reports whether a release found the row locked a moment ago. sqlReleaseMany would wait for
// the row and then omit the item.
func (o *operation) foundLocked(c *store.Claim) bool {
	_, locked := o.lockedRows.since(lockedBy{o.name, o.claimName(c)})
	return locked
}

func releaseOf(c *store.Claim) *store.Event {
	return &store.Event{Kind: store.EventReleased, Outcome: c.Outcome, Result: c.Result}
}

// releaseRest decides the remaining claims with their rows locked, and ends their grants. Who is told: see tell.go.
func (o *operation) releaseRest(ctx context.Context, claims []store.Claim, rest []int, verdicts []store.Verdict) error {
	found, announced, err := o.callRelease(ctx, claims, rest)
	if err != nil {
		return err
	}
	var todo work
	ended := make(map[int]bool) // claims whose shares have ended, whatever becomes of the key
	for i := range found {
		v := &found[i]
		n := rest[v.ord-1]
		c, h := &claims[n], &v.handOver
		h.namespace, h.key = o.id.Namespace, c.Key
		if v.state != "" {
			verdicts[n] = v.verdict()
		}
		switch h.outcome {
		case handedOver:
			o.recent.handedOver(h.key, c.Awaited)
		case freedIt:
			o.recent.freed(h.key)
		case endedShare, lapsedShare:
			ended[n] = ended[n] || v.state != ""
		}
		o.partly = o.partly || h.outcome != nothingChanged
		todo.leases = append(todo.leases, h.toReap...)
		of := v.ending(c)
		of.announced = announced && !of.byClient
		o.tell(*h, of)
		if h.outcome == expiredWaiters {
			of.announced = false // nobody was granted the key yet
			todo.keys = append(todo.keys, of)
		}
	}
	todo.leases = unique(todo.leases)
	if err := o.finish(ctx, todo, false); err != nil {
		return err
	}
	for _, n := range rest {
		if verdicts[n].Status == 0 {
			return o.fail(errShort, true)
		}
		if o.notHandedOff[o.claimName(&claims[n])] && !ended[n] {
			verdicts[n] = store.Verdict{Status: store.ClaimRowLocked}
		}
	}
	return nil
}

// callRelease calls the function release for some claims. announced: the announcement of its hand-overs followed it.
func (o *operation) callRelease(ctx context.Context, claims []store.Claim, which []int) (found []verdictRow, announced bool, err error) {
	id := o.id
	keys, tokens, leases := claimColumns(claims, which)
	undelivered, successes, atOnce := make([]bool, len(which)), make([]*bool, len(which)), make([]bool, len(which))
	results, traceparents, served := make([]*string, len(which)), make([]string, len(which)), make([]string, len(which))
	for n, i := range which {
		c := &claims[i]
		undelivered[n], successes[n], atOnce[n] = c.Undelivered, successOf(c), c.AtOnce
		results[n], traceparents[n], served[n] = textOf(c.Result), c.Traceparent, textOfServed(c.Served)
	}
	then := o.announcement(claims, which)
	found, err = query(ctx, o, sqlRelease.followedBy(then),
		[]any{id.Namespace, id.Instance, keys, tokens, leases, undelivered, successes, results, atOnce, traceparents, served},
		func(rows pgx.Rows, v *verdictRow) error {
			return rows.Scan(v.handOver.with(&v.ord, &v.state, &v.token, &v.lease, &v.acquiredAt, &v.traceparent)...)
		})
	return found, then != nil && then.ran, err
}

// ending is the grant that the claim c ends.
func (v *verdictRow) ending(c *store.Claim) ending {
	e := ending{
		namespace: v.handOver.namespace, key: c.Key, lease: uuid.UUID(v.lease), token: (*int64)(&v.token),
		traceparent: c.Traceparent, byClient: byClient(c),
	}
	if e.lease == sharedLease {
		e.token = nil
	}
	if v.state != "" && claimStatuses[string(v.state)] == store.Holds {
		e.how = releaseOf(c)
	}
	return e
}

// successOf is nil for a claim without an outcome.
func successOf(c *store.Claim) *bool {
	if c.Outcome == store.NoOutcome {
		return nil
	}
	success := c.Outcome == store.Success
	return &success
}

func claimColumns(claims []store.Claim, which []int) (keys []string, tokens []int64, leases [][16]byte) {
	keys, tokens, leases = make([]string, len(which)), make([]int64, len(which)), make([][16]byte, len(which))
	for n, i := range which {
		c := &claims[i]
		keys[n], tokens[n], leases[n] = c.Key, c.Token, c.Lease
	}
	return keys, tokens, leases
}

// textOfServed lists served waiters for the function drop_served.
func textOfServed(served []store.AttemptID) string {
	ids := make([]string, len(served))
	for i, id := range served {
		ids[i] = id.String()
	}
	return strings.Join(ids, ",")
}
