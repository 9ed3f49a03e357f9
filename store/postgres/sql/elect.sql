-- Makes an instance the one that reads stats for all, or hears who is: see the function.
-- $1 instance, $2 term (0: it gives the office up)
SELECT elected, lasts FROM locksidecar.elect($1, $2)
