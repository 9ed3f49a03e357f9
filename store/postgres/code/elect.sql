-- elect elects an instance for a term if no other is elected. A term of zero ends its own term. lasts is the
-- rest of the elected instance's term. The row's lock decides: a statement that waited for it checks again, by
-- the clock after the wait. An instance that is not elected writes nothing.
CREATE OR REPLACE FUNCTION locksidecar.elect(its_instance text, term interval, OUT elected boolean, OUT lasts interval)
LANGUAGE plpgsql AS $$
DECLARE
    til timestamptz;
BEGIN
    elected := false;
    IF term > interval '0' THEN
        UPDATE locksidecar.fleet f SET instance = its_instance, elected_until = clock_timestamp() + term
        WHERE f.instance = its_instance OR f.elected_until <= clock_timestamp()
        RETURNING f.elected_until INTO til;
        elected := FOUND;
    ELSE
        UPDATE locksidecar.fleet f SET elected_until = '-infinity'
        WHERE f.instance = its_instance AND f.elected_until > clock_timestamp();
    END IF;
    IF NOT elected THEN -- another statement sees the row as it is after the wait
        SELECT f.elected_until INTO til FROM locksidecar.fleet f;
    END IF;
    lasts := CASE WHEN til > clock_timestamp() THEN til - clock_timestamp() ELSE interval '0' END;
END
$$;
