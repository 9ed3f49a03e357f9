-- elect elects an instance for a term from now on, if no other is elected, or if it was
-- itself; it gives the office up when the term is zero. lasts is how long who is elected
-- then stays so, zero if nobody is. The row's lock decides: who waited for it looks
-- again, by the clock as it is then. Who is not elected writes nothing.
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
    IF NOT elected THEN -- a statement of its own sees what was waited for
        SELECT f.elected_until INTO til FROM locksidecar.fleet f;
    END IF;
    lasts := CASE WHEN til > clock_timestamp() THEN til - clock_timestamp() ELSE interval '0' END;
END
$$;
