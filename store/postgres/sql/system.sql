-- Of which cluster a primary is: its copies share the identifier. No row: it is a standby.
SELECT system_identifier::text FROM pg_control_system() WHERE NOT pg_is_in_recovery()
