-- The schema's version, and the oldest one a sidecar may have been built for.
SELECT schema_version, oldest_version FROM locksidecar.meta
