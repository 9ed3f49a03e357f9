-- Begins to grant on a server that was promoted, or restored: see the function.
SELECT locksidecar.new_epoch()
