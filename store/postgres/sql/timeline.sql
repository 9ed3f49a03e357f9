-- Which server of a system is at the other end: whoever is promoted begins a timeline with a
-- higher number. A standby has none of its own.
SELECT system_identifier::text,
    CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END
FROM pg_control_system()
