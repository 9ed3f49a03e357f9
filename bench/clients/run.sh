#!/usr/bin/env bash
# bench/clients/run.sh: how fast each client makes pairs of acquire and release, beside the library that users would take instead, in turns
# on one machine. Both servers keep their locks in memory, so the clients are what differs. Prints a table for docs/performance.md.
# TURNS (5) and SECONDS_EACH (3) change its length. It needs what `test/deps.sh python node go` installs, and redis-server.
set -euo pipefail
cd "$(dirname "$0")/../.."
turns=${TURNS:-5} seconds=${SECONDS_EACH:-3}

make --no-print-directory build >&2
(cd clients/node && npx --no-install tsc -p tsconfig.json)
(cd bench/clients/node && npm ci --silent --no-audit --no-fund)
venv=bench/clients/python/.venv
[ -x $venv/bin/python ] || python3 -m venv $venv
$venv/bin/pip install --quiet --disable-pip-version-check -r bench/clients/python/requirements.txt

folder=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$folder"
}
trap cleanup EXIT
LOCKSIDECAR_SOCKET=$folder/sidecar.sock LOCKSIDECAR_STORE=memory:// bin/locksidecar serve >"$folder/sidecar.log" 2>&1 & pids+=($!)
redis-server --port 0 --unixsocket "$folder/redis.sock" --save '' --appendonly no >"$folder/redis.log" 2>&1 & pids+=($!)
for socket in sidecar redis; do
  for _ in $(seq 100); do [ -S "$folder/$socket.sock" ] && break; sleep 0.1; done
  [ -S "$folder/$socket.sock" ] || { cat "$folder/$socket.log" >&2; exit 1; }
done

node() { command node bench/clients/node/pairs.mjs "$@"; }
python() { PYTHONPATH=clients/python/src $venv/bin/python bench/clients/python/pairs.py "$@"; }

# language, the other library, callers
rows=("node redlock 1" "node redlock 64" "python redis 1" "python redis 16")
for turn in $(seq "$turns"); do
  for row in "${rows[@]}"; do
    read -r language other callers <<<"$row"
    ours=$($language locksidecar "$folder/sidecar.sock" "$callers" "$seconds")
    theirs=$($language "$other" "$folder/redis.sock" "$callers" "$seconds")
    echo "turn $turn: $language, $callers callers: locksidecar $ours, $other $theirs" >&2
    echo "$row $ours $theirs" >>"$folder/results"
  done
done

echo "| client | callers | pairs/s | beside | pairs/s | ratio | lowest and highest ratio of $turns turns |"
echo "|---|--:|--:|---|--:|--:|--:|"
for row in "${rows[@]}"; do
  read -r language other callers <<<"$row"
  # The row of the median ratio.
  grep "^$row " "$folder/results" | awk '{ printf "%.2f %d %d\n", $4 / $5, $4, $5 }' | sort -n | awk -v l="$language" -v o="$other" -v c="$callers" '
    { ratio[NR] = $1; ours[NR] = $2; theirs[NR] = $3 }
    END { m = int((NR + 1) / 2); printf "| %s | %d | %d | %s | %d | %.2f | %.2f to %.2f |\n", l, c, ours[m], o, theirs[m], ratio[m], ratio[1], ratio[NR] }'
done
