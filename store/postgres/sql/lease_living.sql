-- Which leases live and can be renewed. One that was not, although it is among them, is
-- locked by somebody, or was.
-- $1 leases
SELECT id FROM locksidecar.leases WHERE id = ANY ($1) AND expires_at > clock_timestamp() AND NOT standing
