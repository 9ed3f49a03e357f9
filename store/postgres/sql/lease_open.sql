-- Makes renewed leases. A repeat extends one that is still alive, and gives no row
-- for one that is not; nor when it comes too late: a buried lease must not rise again.
-- $1 leases, $2 ttls, $3 instance, $4 pod, $5 not after
INSERT INTO locksidecar.leases AS l (id, instance, pod, renewed, ttl, expires_at, history)
SELECT id, $3, $4, true, ttl, clock_timestamp() + ttl, (SELECT locksidecar.history())
FROM unnest($1::uuid[], $2::interval[]) AS a (id, ttl)
WHERE clock_timestamp() < $5
ORDER BY id
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(clock_timestamp() + l.ttl, l.hold_until)
WHERE l.expires_at > clock_timestamp() AND NOT l.standing
RETURNING l.id
