-- What a next release may do: columns that the release before does not know.

-- +goose Up
ALTER TABLE locksidecar.locks ADD COLUMN future text;
ALTER TABLE locksidecar.waiters ADD COLUMN future text;
ALTER TABLE locksidecar.leases ADD COLUMN future text;
