-- Users with few rights for locksidecar on MySQL or MariaDB. Run it as an administrator, after you have replaced the two passwords
-- and, if it has another name, the database:
--
--   mysql --force < deploy/mysql-roles.sql
--   LOCKSIDECAR_STORE_URL=mysql://locksidecar_owner:…@host/locksidecar locksidecar migrate
--   mysql < deploy/mysql-roles.sql
--
-- The owner makes the tables. A sidecar only reads and writes rows, and runs with LOCKSIDECAR_AUTO_MIGRATE=false. Its rights are
-- granted by table, so they are refused until the tables exist. It may be run any number of times.

CREATE DATABASE IF NOT EXISTS locksidecar;
CREATE USER IF NOT EXISTS locksidecar_owner IDENTIFIED BY 'replace-1';
CREATE USER IF NOT EXISTS locksidecar IDENTIFIED BY 'replace-2';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON locksidecar.* TO locksidecar_owner;

GRANT SELECT, INSERT, UPDATE, DELETE ON locksidecar.locksidecar_locks TO locksidecar;
GRANT SELECT, INSERT, UPDATE, DELETE ON locksidecar.locksidecar_leases TO locksidecar;
GRANT SELECT, INSERT, DELETE ON locksidecar.locksidecar_letters TO locksidecar;
GRANT SELECT, UPDATE ON locksidecar.locksidecar_meta TO locksidecar;
