-- What a next release may do: columns that the release before does not know, and functions
-- that do the same for it as before.

-- +goose Up
ALTER TABLE locksidecar.locks ADD COLUMN future text;
ALTER TABLE locksidecar.waiters ADD COLUMN future text;
ALTER TABLE locksidecar.leases ADD COLUMN future text;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION locksidecar.in_time(not_after timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    left_of_it interval := not_after - clock_timestamp();
BEGIN
    IF left_of_it > interval '0' THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'the statement came too late' USING ERRCODE = 'LS002';
END
$$;
-- +goose StatementEnd

UPDATE locksidecar.meta SET schema_version = @VERSION@;
