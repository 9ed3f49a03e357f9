#!/usr/bin/env bash
# bench/clients/run.sh [node|python|java|go|ruby|rust|php]…: how fast each client makes pairs of acquire and release, beside a library that users would take
# instead, in turns on one machine, and beside a bare loop over the sidecar's socket for Go, Ruby and Rust. Both servers keep their locks in memory, so the clients are what differs. Prints a table for
# docs/performance.md. TURNS (5) and SECONDS_EACH (3) change its length. It installs what it lacks, and needs redis-server.
set -euo pipefail
cd "$(dirname "$0")/../.."
turns=${TURNS:-5} seconds=${SECONDS_EACH:-3}
languages=("$@")
[ $# -gt 0 ] || languages=(node python java go ruby rust php)

# What a language needs, and how its program is run.
prepare_node() {
  test/deps.sh node
  (cd clients/node && npx --no-install tsc -p tsconfig.json)
  (cd bench/clients/node && npm ci --silent --no-audit --no-fund)
}
run_node() { node bench/clients/node/pairs.mjs "$@"; }

prepare_python() {
  test/deps.sh python
  [ -x bench/clients/python/.venv/bin/python ] || python3 -m venv bench/clients/python/.venv
  bench/clients/python/.venv/bin/pip install --quiet --disable-pip-version-check -r bench/clients/python/requirements.txt
}
run_python() { PYTHONPATH=clients/python/src bench/clients/python/.venv/bin/python bench/clients/python/pairs.py "$@"; }

prepare_java() {
  test/deps.sh java
  mvn -q -B -ntp -f clients/java/pom.xml -pl client compile dependency:build-classpath -Dmdep.outputFile=target/bench-classpath
  mvn -q -B -ntp -f bench/clients/java/pom.xml dependency:build-classpath -Dmdep.outputFile=target/classpath
  classpath=clients/java/client/target/classes:$(cat clients/java/client/target/bench-classpath):$(cat bench/clients/java/target/classpath)
  javac -d bench/clients/java/target -cp "$classpath" bench/clients/java/Pairs.java
}
run_java() { java -cp "bench/clients/java/target:$classpath" Pairs "$@"; }

prepare_go() { (cd bench/clients/go && go build -o "$folder/pairs" .); }
run_go() { "$folder/pairs" "$@"; }

prepare_ruby() {
  test/deps.sh ruby
  ruby -e 'require "redis"' 2>/dev/null || test/deps.sh package=ruby-redis
}
run_ruby() { ruby bench/clients/ruby/pairs.rb "$@"; }

prepare_rust() {
  test/deps.sh rust
  cargo build --quiet --release --locked --manifest-path bench/clients/rust/Cargo.toml --target-dir "${CARGO_TARGET_DIR:=bench/clients/rust/target}"
}
run_rust() { "$CARGO_TARGET_DIR/release/pairs" "$@"; }

prepare_php() {
  test/deps.sh php package=php-redis package=php-symfony-lock
}
run_php() { php -d error_reporting=8191 bench/clients/php/pairs.php "$@"; } # Debian's Symfony is older than its PHP

folder=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$folder"
}
trap cleanup EXIT

make --no-print-directory build >&2
for language in "${languages[@]}"; do "prepare_$language" >&2; done

LOCKSIDECAR_SOCKET=$folder/sidecar.sock LOCKSIDECAR_STORE_URL=memory:// bin/locksidecar serve >"$folder/sidecar.log" 2>&1 & pids+=($!)
# Redisson takes no Unix socket, so it has a port of this machine.
port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
redis-server --bind 127.0.0.1 --port "$port" --unixsocket "$folder/redis.sock" --save '' --appendonly no >"$folder/redis.log" 2>&1 & pids+=($!)
for socket in sidecar redis; do
  for _ in $(seq 100); do [ -S "$folder/$socket.sock" ] && break; sleep 0.1; done
  [ -S "$folder/$socket.sock" ] || { cat "$folder/$socket.log" >&2; exit 1; }
done

# language, the other library, callers
all=("node redlock 1" "node redlock 64" "python redis 1" "python redis 16" "java redisson 1" "java redisson 16" "go redislock 1" "go redislock 64" "go socket 1" "go socket 64"
  "ruby redis 1" "ruby redis 16" "ruby socket 1" "ruby socket 16" "rust rslock 1" "rust rslock 64" "rust socket 1" "rust socket 64" "php symfony 1")
rows=()
for row in "${all[@]}"; do
  [[ " ${languages[*]} " != *" ${row%% *} "* ]] || rows+=("$row")
done
for turn in $(seq "$turns"); do
  for row in "${rows[@]}"; do
    read -r language other callers <<<"$row"
    server=$folder/redis.sock
    [ "$language" != java ] || server=redis://127.0.0.1:$port
    [ "$other" != socket ] || server=$folder/sidecar.sock
    ours=$("run_$language" locksidecar "$folder/sidecar.sock" "$callers" "$seconds")
    theirs=$("run_$language" "$other" "$server" "$callers" "$seconds")
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
