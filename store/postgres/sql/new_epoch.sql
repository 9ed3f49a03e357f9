-- Begins to grant on a server that was promoted: see the function.
SELECT locksidecar.new_epoch()
