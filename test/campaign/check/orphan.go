package check

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// leftovers are what must not be there when all faults are healed and all clients have
// gone. $1 are the pods whose sidecars still run.
const leftovers = `
SELECT 'lock ' || l.key || ' under token ' || l.token, s.instance FROM locksidecar.locks l JOIN locksidecar.leases s ON s.id = l.lease_id
	WHERE s.expires_at > clock_timestamp()
UNION ALL SELECT 'share of ' || h.key || ' under token ' || h.token, s.instance FROM locksidecar.shares h JOIN locksidecar.leases s ON s.id = h.lease_id
	WHERE s.expires_at > clock_timestamp()
UNION ALL SELECT 'waiter ' || w.id || ' for ' || w.key, coalesce(s.instance, 'nobody')
	FROM locksidecar.waiters w LEFT JOIN locksidecar.leases s ON s.id = w.lease_id
UNION ALL SELECT 'signal ' || g.kind || ' for ' || g.key, coalesce(s.instance, 'nobody')
	FROM locksidecar.signals g LEFT JOIN locksidecar.leases s ON s.id = g.lease_id
UNION ALL SELECT 'watcher of ' || w.key, coalesce(s.instance, 'nobody')
	FROM locksidecar.watchers w LEFT JOIN locksidecar.leases s ON s.id = w.lease_id
UNION ALL SELECT 'lease ' || s.id || CASE WHEN renewed THEN '' ELSE ', not renewed' END,
	s.instance FROM locksidecar.leases s WHERE s.expires_at > clock_timestamp() AND NOT (s.renewed AND s.pod = ANY($1))
ORDER BY 1`

// Orphans waits until the database holds nothing for clients that have gone: no lock, nor share, that
// counts as held, no waiter, signal or watcher, and no living lease but those of sidecars
// that run in these pods. Anything that is still there at the end of within is an orphan. A
// connection to the database that takes no part in the faults is needed.
func Orphans(ctx context.Context, url string, pods []string, within time.Duration) ([]Violation, error) {
	ctx, cancel := context.WithTimeout(ctx, within+time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	for deadline := time.Now().Add(within); ; {
		found, err := orphans(ctx, conn, pods)
		if err != nil || len(found) == 0 || time.Now().After(deadline) {
			return found, err
		}
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(50 * time.Millisecond): // the pause of a poll
		}
	}
}

func orphans(ctx context.Context, conn *pgx.Conn, pods []string) ([]Violation, error) {
	rows, err := conn.Query(ctx, leftovers, pods)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Violation, error) {
		var what, whose string
		err := row.Scan(&what, &whose)
		return Violation{Rule: "orphan", Text: fmt.Sprintf("%s of %s is left", what, whose)}, err
	})
}
