-- Is there a schema at all?
SELECT to_regclass('locksidecar.meta') IS NOT NULL
