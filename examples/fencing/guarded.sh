#!/usr/bin/env bash
# A guarded write: why the fencing token matters, and how to use it in SQL.
#
# No lock service can stop a process that sleeps past its lease and then writes. Here a process is
# paused between "I hold the lock" and its write (SIGSTOP; a full CPU, a suspended machine or a long
# garbage collection does the same). The table refuses the late write, because it has seen a greater
# token. The same table without the guard accepts it, and loses money.
#
# Needs curl, and psql with PGHOST, PGUSER and PGDATABASE of a database for writing.
set -euo pipefail
socket=${LOCKSIDECAR_SOCKET:-$HOME/.locksidecar/locksidecar.sock}
[ -S "$socket" ] || { echo "guarded: there is no sidecar at $socket; is it running, and is LOCKSIDECAR_SOCKET right?" >&2; exit 1; }

sql() { psql -XqtA -v ON_ERROR_STOP=1 "$@"; }
lock() { curl -sS --fail-with-body --unix-socket "$socket" -X "$1" "http://localhost/v1/locks/$2" "${@:3}"; }
token_of() { sed -E 's/.*"token":([0-9]+).*/\1/'; }

# last_token is the greatest token that has written the row.
sql <<'SQL'
SET client_min_messages TO warning; -- not that there was nothing to drop
DROP TABLE IF EXISTS guarded_example;
CREATE TABLE guarded_example (id int PRIMARY KEY, balance int NOT NULL, last_token bigint NOT NULL);
INSERT INTO guarded_example VALUES (1, 100, 0), (2, 100, 0);
SQL
dir=$(mktemp -d)
paused=''
cleanup() {
  [ -z "$paused" ] || kill -KILL "$paused" 2>/dev/null || true
  rm -rf "$dir"
  sql -c 'DROP TABLE IF EXISTS guarded_example' >/dev/null
}
trap cleanup EXIT

# Prints the number of written rows: 1, or 0 after a greater token.
guarded_write() { # BALANCE TOKEN
  sql -v balance="$1" -v t="$2" <<'SQL'
WITH written AS (
  UPDATE guarded_example SET balance = :balance, last_token = :t WHERE id = 1 AND last_token <= :t RETURNING 1)
SELECT count(*) FROM written;
SQL
}
unguarded_write() { # BALANCE
  sql -v balance="$1" <<'SQL'
UPDATE guarded_example SET balance = :balance WHERE id = 2;
SQL
}
balance() { sql -c "SELECT balance FROM guarded_example WHERE id = $1"; }

# A worker takes 30 from the account: reads, thinks, writes.
worker_a() {
  local token new
  token=$(lock PUT account:1 -d '{"bind":"ttl","ttl_ms":1000}' | token_of)
  new=$(($(balance 1) - 30))
  echo "A: I hold the lock, fencing token $token; the balance will be $new"
  echo "$token" > "$dir/ready"
  kill -STOP "$BASHPID" # the pause, which the process does not notice
  unguarded_write "$new"
  guarded_write "$new" "$token" > "$dir/rows"
}
worker_a &
paused=$!
# Wait until it is stopped: field 3 of stat is its state.
until [ -s "$dir/ready" ] && [ "$(cut -d' ' -f3 "/proc/$paused/stat")" = T ]; do sleep 0.01; done
echo "A is paused, its lease runs out"

token_b=$(lock PUT account:1 -d '{"bind":"ttl","ttl_ms":60000,"wait_ms":20000}' | token_of)
new=$(($(balance 1) - 50))
[ "$(guarded_write "$new" "$token_b")" = 1 ] || { echo "B's write was refused" >&2; exit 1; }
unguarded_write "$new"
lock DELETE "account:1?token=$token_b" >/dev/null
echo "B: I hold the lock, fencing token $token_b; the balance is $new"

kill -CONT "$paused"
wait "$paused"
paused=''
[ "$token_b" -gt "$(cat "$dir/ready")" ] || { echo "the token did not grow" >&2; exit 1; }
echo "A goes on, and writes its old result: $(cat "$dir/rows") rows with WHERE last_token <= token"
echo "with the guard the balance is $(balance 1): B's; A is refused, and can begin again"
echo "without the guard the balance is $(balance 2): A's, and B's withdrawal is lost"
[ "$(cat "$dir/rows")" = 0 ] && [ "$(balance 1)" = 50 ] && [ "$(balance 2)" = 70 ] || { echo "this is not the expected result" >&2; exit 1; }
