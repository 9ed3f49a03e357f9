-- What a next release may do: functions that do the same for the release before as its own.
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
