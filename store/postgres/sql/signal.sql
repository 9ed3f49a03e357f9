-- Asks the holders of keys for something: see the function.
-- $1 namespace, $2 not after, $3 keys, $4 tokens (0: whoever holds it), $5 kinds, $6 reasons
SELECT ord, held, token, watched, stopping, tell, again, buried, hints, hint_instances FROM locksidecar.signal($1, $2, $3, $4, $5, $6)
