package postgres

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// Who is told that a grant has ended and who is next, by what, and when. A function of the database passes the key on, and says in a
// hand_over what became of it. The function tell below does the rest after the commit:
//
//	who                                       by                                       when
//	the next holder, of this instance         news with the grant                      at once
//	the next holder, elsewhere, if a          the grant in a notification              sent with the release,
//	  session released; not of a share          (announcement, notify_grants)            after its commit
//	the next holder, elsewhere, otherwise     a hint                                   soon
//	waiters that may expect another end, or   a hint each                              soon
//	  were skipped, or that a repeat names
//	watchers, of any instance                 events (event.go)                        soon
//	the holder's instance that may keep the   a recall                                 soon
//	  key, if another begins to wait or watch
//
// A hint asks an instance to check a waiter: see words.go. The notifier sends hints, recalls and events in the background (notify.go), and the
// listener of the other instance hears them (listen.go). All of it can be lost. Then the checks that accompany renewals find the grant, and the
// end of the time for which a key may be kept replaces a recall.

// handOver is a value of the type hand_over in the database: what became of a key. See schema/.
type handOver struct {
	namespace, key        string
	outcome               zeronull.Text
	toReap                []uuid.UUID // of waiters in the way, or passed over
	attempt, lease        zeronull.UUID
	instance              zeronull.Text
	token                 zeronull.Int8
	acquiredAt, expiresAt zeronull.Timestamptz
	slot                  *int // of a share; nil: the grant is exclusive
	cohort                []uuid.UUID
	hints                 hints
	watched               pgtype.Bool
	ended                 zeronull.Int8 // the token of the grant that ended, unless watchers know that already
	now                   zeronull.Timestamptz
	lapsed                bool // the grant had already ended with its lease
}

// with returns the scan targets: first columns, then the attributes of hand_over.
func (h *handOver) with(first ...any) []any {
	return append(first, &h.outcome, &h.toReap, &h.attempt, &h.lease, &h.instance, &h.token, &h.acquiredAt, &h.expiresAt,
		&h.slot, &h.cohort, &h.hints.attempts, &h.hints.instances, &h.watched, &h.ended, &h.now)
}

const (
	handedOver     = "granted"
	freedIt        = "freed"
	expiredWaiters = "waiters_expired"
	lapsedShare    = "lapsed" // the share of a dead lease was dropped
	endedShare     = "ended"  // a release or withdrawal ended the share
	nothingChanged = ""       // a repeat, whose first answer may be lost
)

// hints are waiters that should check again, and their instances.
type hints struct {
	attempts  []uuid.UUID
	instances []string
}

// ending is a grant that is to end, and by what.
type ending struct {
	namespace, key string
	lease          uuid.UUID
	token          *int64 // nil: any
	// how is the event for watchers. nil: the lease is reaped.
	how *store.Event
	// traceparent is the trace context of the release that ends the grant, or empty.
	traceparent string
	// byClient: a client releases the lock. It can repeat that as often as it likes.
	byClient bool
	// announced: the notification to the next holder followed the release, if that holder is of another instance and not shared.
	announced bool
}

func (e ending) name() keyName { return keyName{e.namespace, e.key} }

// againEach limits how often repeated requests of a client cause news and requests to other instances.
const againEach = time.Second

// byClient: the claim has no lease, so it comes from a client. A sidecar repeats its own claims only if an answer was lost.
func byClient(c *store.Claim) bool { return c.Lease == store.LeaseID{} }

// announcement is what follows a release: the notifications to the next holders of other instances, or nil. Releases by
// clients cause only hints, because each repeat would notify, and a NOTIFY costs the whole server.
func (o *operation) announcement(claims []store.Claim, which []int) *follower {
	which = slices.DeleteFunc(slices.Clone(which), func(i int) bool { return byClient(&claims[i]) })
	if len(which) == 0 {
		return nil
	}
	keys, tokens, _ := claimColumns(claims, which)
	id := o.id
	return &follower{sql: sqlNotifyGrants, args: []any{id.Namespace, id.Instance, keys, tokens, o.longCommit}}
}

// tell tells everyone whom a hand-over concerns, after its commit. of is the grant that has ended.
func (o *operation) tell(h handOver, of ending) {
	k := keyName{h.namespace, h.key}
	if h.watched.Bool {
		how := of.how
		if h.outcome == lapsedShare {
			how = nil
		}
		o.tellEnded(k, h.ended, how)
	}
	if repeated := h.outcome == nothingChanged && of.byClient; len(h.hints.attempts) > 0 && (!repeated || o.again.due(againEach)) {
		o.hintAll(h.namespace, h.hints)
	}
	if h.outcome != handedOver {
		return
	}
	if h.watched.Bool {
		o.tellAcquired(k, h.token)
	}
	switch announced := of.announced && h.slot == nil; {
	case o.isMine(h.namespace, string(h.instance)):
		o.tellHolder(&h, of.traceparent)
	case !announced:
		o.hint(h.namespace, string(h.instance), uuid.UUID(h.attempt))
	}
}

// tellHolder sends the news of its grant to a waiter of this instance.
func (o *operation) tellHolder(h *handOver, releasedBy string) {
	answer := grant(h.token, h.acquiredAt, h.expiresAt, h.now, zeronull.Text(releasedBy))
	// The answer is at least as old as the question, and the waiter cannot know that age.
	answer.ExpiresIn -= time.Since(o.sent)
	if h.slot != nil {
		answer.Slot = *h.slot
		o.recent.shared(h.key)
	}
	answer.Cohort = halvesOf(h.cohort)
	o.report(store.News{
		Attempt: store.Attempt{Key: h.key, ID: store.AttemptID(h.attempt)}, Lease: store.LeaseID(h.lease), Answer: answer,
	})
}

// tellAcquired tells watchers of a new grant.
func (o *operation) tellAcquired(k keyName, token zeronull.Int8) {
	o.event(k.namespace, store.Event{Kind: store.EventAcquired, Key: k.key, Token: int64(token)})
}

// tellEnded tells watchers of the end of a grant. If how is nil, its lease was reaped. A zero token means that no grant ended.
func (o *operation) tellEnded(k keyName, token zeronull.Int8, how *store.Event) {
	if token == 0 {
		return
	}
	e := store.Event{Kind: store.EventExpired}
	if how != nil {
		e = *how
	}
	e.Key, e.Token = k.key, int64(token)
	o.event(k.namespace, e)
}

func (o *operation) hintAll(namespace string, h hints) {
	for i, attempt := range h.attempts {
		o.hint(namespace, h.instances[i], attempt)
	}
}

// hint asks an instance, perhaps this one, to check a waiter.
func (s *Store) hint(namespace, instance string, attempt uuid.UUID) {
	if s.isMine(namespace, instance) {
		s.report(store.News{Attempt: store.Attempt{ID: attempt}})
		return
	}
	s.notifier.send(channelOf(namespace, instance), hintOf(attempt))
}

// recall asks the instance that may keep a key to give it up. An empty instance is none.
func (s *Store) recall(k keyName, instance zeronull.Text) {
	if instance != "" {
		s.notifier.send(channelOf(k.namespace, string(instance)), recallOf(k.key))
	}
}

func (s *Store) isMine(namespace, instance string) bool {
	return instance == s.id.Instance && namespace == s.id.Namespace
}
