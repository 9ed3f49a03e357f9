-- Says to an old primary that there was a later one, so that it grants nothing to those who do
-- not know: see the function. No standby confirms that any more, and the next connection says it again.
-- $1 the token with which its epoch began, $2 that of the later one
SELECT set_config('synchronous_commit', 'local', true), locksidecar.outdate($1, $2)
