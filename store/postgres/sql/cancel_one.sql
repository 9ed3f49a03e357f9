-- Takes one waiter out of its queue. It waits for a hand-off that is under way; no
-- row then means that it may have been granted.
-- $1 namespace, $2 grant
DELETE FROM locksidecar.waiters WHERE namespace = $1 AND grant_id = $2 RETURNING grant_id
