-- Tells the instances to which keys were handed of the grants. It follows the release that
-- did so, in the same flush, in a transaction of its own: that one is committed when this
-- one reads what it wrote (invariant 4), and the disk is not waited for while the lock
-- that NOTIFY takes on the whole server is held. See grantOf for what the word of a grant
-- is. Only a session's grant under its waiter's own renewed lease, and whose id is random
-- (version 4), is told whole; otherwise the waiter is told to look. So it is when the
-- release took long: perhaps its wait for a standby was cancelled. The look waits for one.
-- $1 namespace, $2 instance, $3 keys, $4 tokens that ended, $5 what is long
SELECT pg_notify(locksidecar.channel($1, s.instance), CASE
    WHEN s.renewed AND s.hold_until IS NULL AND substr(l.grant_id::text, 15, 1) = '4'
        AND clock_timestamp() < l.acquired_at + $5 THEN concat_ws(',',
        'granted:' || l.grant_id, l.token, (extract(epoch FROM l.acquired_at) * 1000000)::bigint,
        (extract(epoch FROM s.expires_at) * 1000000)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        l.handed_by)
    ELSE 'look:' || left(l.grant_id::text, 18) END)
FROM unnest($3::text[], $4::bigint[]) AS c (key, token)
CROSS JOIN LATERAL (SELECT * FROM locksidecar.locks WHERE namespace = $1 AND key = c.key OFFSET 0) l
CROSS JOIN LATERAL (SELECT * FROM locksidecar.leases WHERE id = l.lease_id OFFSET 0) s
WHERE l.token > c.token AND l.grant_id IS NOT NULL AND s.instance <> $2
AND set_config('synchronous_commit', 'off', true) IS NOT NULL
