package postgres

import (
	"cmp"
	"context"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// lockColumns are the attributes of the type shown_lock in the database, in the order of every statement. A missing one is
// zero.
type lockColumns struct {
	token                 zeronull.Int8
	acquiredAt, expiresAt zeronull.Timestamptz // expiresAt is the end of the lease or of a min_hold, whichever is later
	now                   zeronull.Timestamptz
	lease                 zeronull.UUID // zero: the lease does not exist
	instance, pod         zeronull.Text
	renewed, holdPending  *bool
	keepable              *bool // see isKeepable
	session, owner        zeronull.Text
	data, traceparent     zeronull.Text
	stopping              zeronull.Timestamptz
	stopReason            *string
	attempt               zeronull.UUID // zero: there was no grant, or it was released
	waiting               zeronull.Int8
	limit, slot           zeronull.Int8 // limit of shared holders or waiters; slot of a share
	holders               *string       // see shown; nil: the key has no shared holders
}

// with returns the scan targets: first columns, then the lock's.
func (c *lockColumns) with(first ...any) []any {
	return append(first, &c.token, &c.acquiredAt, &c.expiresAt, &c.now, &c.lease, &c.instance, &c.pod,
		&c.renewed, &c.holdPending, &c.keepable, &c.session, &c.owner, &c.data, &c.traceparent,
		&c.stopping, &c.stopReason, &c.attempt, &c.waiting, &c.limit, &c.slot, &c.holders)
}

// expiresIn is how long the key stays held without a renewal; zero or less if it is not held.
func (c *lockColumns) expiresIn() time.Duration {
	if time.Time(c.expiresAt).IsZero() {
		return 0
	}
	return time.Time(c.expiresAt).Sub(time.Time(c.now))
}

// renewedByOwner: the lock is held under a sidecar's renewed lease, so it is not a bind:ttl lock.
func (c *lockColumns) renewedByOwner() bool { return c.renewed != nil && *c.renewed }

func (c *lockColumns) held() bool { return c.holders != nil || c.expiresIn() > 0 }

// keptByHold: only a min_hold keeps the key. The lock has no owner, and a repeated attempt does not find it.
func (c *lockColumns) keptByHold() bool { return c.holdPending != nil && *c.holdPending }

// keptQuiet: the key is kept for its waiters until the end of a quiet time, as hold_quiet does. Nobody holds it.
func (c *lockColumns) keptQuiet() bool { return c.keptByHold() && c.instance == "" }

// isKeepable: the grant is keepable. It says nothing of a key that is not held.
func (c *lockColumns) isKeepable() bool { return c.keepable != nil && *c.keepable }

func (c *lockColumns) heldBy(attempt store.AttemptID) bool {
	return c.expiresIn() > 0 && !c.keptByHold() && store.AttemptID(c.attempt) == attempt
}

// lock converts the columns to a lock. For a free key, it shows the waiters, and how the last grant ended.
func (c *lockColumns) lock(key string) store.Lock {
	if c.held() {
		return c.asHeld(key)
	}
	return c.free(key)
}

func (c *lockColumns) free(key string) store.Lock {
	l := store.Lock{Key: key, QueueLength: int(c.waiting), Limit: int(c.limit)}
	if !time.Time(c.acquiredAt).IsZero() {
		l.Token, l.Expired = int64(c.token), c.attempt != zeronull.UUID{}
	}
	return l
}

// asHeld is lock for a holder whose lease may have expired.
func (c *lockColumns) asHeld(key string) store.Lock {
	if c.keptQuiet() { // only the end, when to check again
		l := c.free(key)
		l.Holder.ExpiresIn = c.expiresIn()
		return l
	}
	l := store.Lock{Key: key, Held: true, Token: int64(c.token), QueueLength: int(c.waiting), Limit: int(c.limit), Kept: c.isKeepable()}
	if shares := c.shares(); shares != nil {
		shares.show(&l)
		return l
	}
	l.Holder = store.Holder{
		Instance: string(c.instance), Pod: string(c.pod), Session: string(c.session), Owner: string(c.owner),
		Lease: store.LeaseID(c.lease), Renewed: c.renewedByOwner(), HoldPending: c.keptByHold(),
		AcquiredAt: time.Time(c.acquiredAt), HeldFor: time.Time(c.now).Sub(time.Time(c.acquiredAt)),
		ExpiresIn: c.expiresIn(), Traceparent: string(c.traceparent),
	}
	if c.data != "" {
		l.Holder.Data = jsonOf((*string)(&c.data))
	}
	if at := time.Time(c.stopping); !at.IsZero() {
		l.Stopping = &store.Stopping{Reason: c.stopReason, At: at}
	}
	return l
}

// granted is the answer for a grant. handedBy is empty unless a release handed the lock over.
func (c *lockColumns) granted(handedBy zeronull.Text) store.Answer {
	answer := grant(c.token, c.acquiredAt, c.expiresAt, c.now, handedBy)
	answer.Slot = int(c.slot)
	return answer
}

// grant is the answer for a grant. The server's clock may have been set back since the grant.
func grant(token zeronull.Int8, acquiredAt, expiresAt, now zeronull.Timestamptz, handedBy zeronull.Text) store.Answer {
	return store.Answer{
		Outcome: store.Granted, Token: int64(token), AcquiredAt: time.Time(acquiredAt),
		ExpiresIn:  time.Time(expiresAt).Sub(time.Time(now)),
		GrantedFor: max(0, time.Time(now).Sub(time.Time(acquiredAt))), HandedBy: string(handedBy),
	}
}

type reading struct {
	lockColumns
	ord        int
	askerLives bool          // the asker's lease is alive
	heldUnder  zeronull.UUID // the lease that the row names; it may be dead
	contended  bool
	handedBy   zeronull.Text
}

func (r *reading) scan(rows pgx.Rows) error {
	return rows.Scan(r.with(&r.ord, &r.askerLives, &r.heldUnder, &r.contended, &r.handedBy)...)
}

// read reads keys in their order. For a shared key it reads at most the given number of holders. leases and
// grants are the asker's, if there is one.
func (o *operation) read(ctx context.Context, keys []string, leases, attempts [][16]byte, holders int) ([]reading, error) {
	o.expectedRows = len(keys)
	found, err := query(ctx, o, sqlRead, []any{o.id.Namespace, keys, leases, attempts, holders},
		func(rows pgx.Rows, r *reading) error { return r.scan(rows) })
	if err != nil {
		return nil, err
	}
	if len(found) != len(keys) {
		return nil, o.fail(errShort, true)
	}
	inOrder := make([]reading, len(keys))
	for _, r := range found {
		inOrder[r.ord-1] = r
	}
	return inOrder, nil
}

// Get reads locks.
func (s *Store) Get(ctx context.Context, keys []string) ([]store.Lock, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "get", len(keys))
	if err != nil {
		return nil, err
	}
	defer cancel()
	if s.readsOnly.Load() {
		return s.getAsReader(ctx, o, keys)
	}
	readings, err := o.read(ctx, keys, nil, nil, store.HoldersShown)
	if err != nil {
		return nil, err
	}
	locks := make([]store.Lock, len(keys))
	for i := range readings {
		locks[i] = readings[i].lock(keys[i])
	}
	return locks, nil
}

// List reads held locks in the order of their keys.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Lock, error) {
	ctx, cancel, o, err := s.begin(ctx, "list")
	if err != nil {
		return nil, err
	}
	defer cancel()
	sql := sqlList
	if s.readsOnly.Load() {
		sql = sqlListAsReader
	}
	if q.Namespace != "" {
		if err := s.MayShowNamespaces(); err != nil {
			return nil, err
		}
	}
	return o.list(ctx, sql, q.Namespace, q.After, q.Prefix, behind(q.Prefix), q.Instance, min(max(q.Limit, 1), math.MaxInt32))
}

// list reads the held locks from first up to end, without end, and behind after. An empty namespace is the store's own.
func (o *operation) list(ctx context.Context, sql statement, namespace, after, first, end, instance string, limit int) ([]store.Lock, error) {
	return query(ctx, o, sql,
		[]any{cmp.Or(namespace, o.id.Namespace), after, first, end, instance, limit, store.HoldersShown},
		func(rows pgx.Rows, l *store.Lock) error {
			var key string
			var c lockColumns
			if err := rows.Scan(c.with(&key)...); err != nil {
				return err
			}
			*l = c.asHeld(key) // the statement has selected it as held
			return nil
		})
}

// maxKeyBytes is the length limit of a key in the API.
const maxKeyBytes = 512

var behindAll = strings.Repeat(string(utf8.MaxRune), maxKeyBytes/utf8.UTFMax+1)

// behind returns the smallest text, by bytes, after all keys with a prefix: the prefix with its last
// character replaced by the next one.
func behind(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		next := last + 1
		if next == 0xD800 { // surrogates are not characters
			next = 0xE000
		}
		if next <= utf8.MaxRune {
			return prefix + string(next)
		}
	}
	return behindAll
}
