#!/usr/bin/env bash
# What the campaign and its relatives run: test/campaign/run.sh KIND. Options come from the environment, as in `make campaign STORE=etcd LENGTH=1h`.
#   brief           each kind of fault once, failovers, upgrades, and the campaign's own parts: `make test-campaign` (as root)
#   brief-clients   programs on the clients for Python, Node, Go, Ruby and PHP, each kind of fault once: `make test-campaign-clients` (as root). Those on
#                   the clients for the JVM and Rust run each night, because it takes long to compile them
#   rounds          rounds with faults of all kinds: `make campaign` (as root). STORE=postgres, etcd, mysql, redis, redis-cluster; SEED=1; LENGTH=10m
#                   (0: one short round); FAULTS=cut,failover; POOLED=true: behind PgBouncer;
#                   KEEP=200ms,1s,0: for how long each sidecar keeps released keys. A failed round prints the command that repeats it
#   clients         the same for programs on the clients: `make campaign-clients` (as root). Also PROGRAMS=py-asyncio,java FORMS=many
#   failover        kills and stops a primary under load and promotes its standby (as root): FAILOVERS=50, 11 seconds each
#   upgrade         under load, replaces sidecars of the last release (upgrade/PREVIOUS) by those of this tree, and back: LENGTH=10m
#   soak            half an hour of traffic: what grows? LENGTH=30m
#   overload        an app that wants more than its sidecar gives (4 minutes; ulimit -n of 16000)
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
kind=${1:-}
[ "$kind" != "" ] || { sed -n '2,/^set/s/^# \{0,1\}//p' run.sh >&2; exit 2; }

needs=(go)
case $kind in
  brief | rounds | failover) needs+=(campaign) ;;
  brief-clients) needs+=(campaign python node ruby php) ;;
  clients) needs+=(campaign python node ruby php java rust) ;;
esac
"$root/test/deps.sh" "${needs[@]}"

case $kind in
  soak | overload) make -C "$root" build ;; # they run the binary that is released
  brief-clients | clients)
    "$root/clients/python/.venv/bin/ruff" check -q clients/python
    "$root/clients/python/.venv/bin/ruff" format -q --check clients/python
    (cd "$root/clients/node" && npx biome ci --config-path=. ../../test/campaign/clients/node && npm run --silent build) ;;
esac
if [ "$kind" = clients ]; then
  (cd "$root/clients/java" && mvn -q -B -ntp -pl client compile dependency:build-classpath -Dmdep.outputFile=target/classpath)
  (cd "$root/clients/rust" && cargo build -q --locked --example campaign)
fi

. "$root/test/as-released.sh"
run() { exec go test -count=1 -vet=off -v "$@"; }
case $kind in
  # Two packages at a time: they wait most of the time, and share nothing.
  brief) run -p 2 -timeout 15m -skip '^(TestSoak|TestOverload|TestClients)$' ./... ;;
  brief-clients) run -timeout 5m -run '^TestClients$' ./clients ;;
  rounds) run -timeout 0 -run '^TestCampaign$' . -store "${STORE:-postgres}" -seed "${SEED:-1}" -length "${LENGTH:-10m}" -faults "${FAULTS:-}" -pooled="${POOLED:-false}" -keep "${KEEP:-200ms,1s,0}" ;;
  clients) run -timeout 0 -run '^TestClients$' ./clients -store "${STORE:-postgres}" -seed "${SEED:-1}" -length "${LENGTH:-10m}" \
    -programs "${PROGRAMS:-py-threads,py-asyncio,py-gevent,py-processes,node,go,ruby,php,java,rust}" -faults "${FAULTS:-}" -forms "${FORMS:-}" ;;
  failover) run -timeout 0 -run '^TestFailover$' ./failover -failovers "${FAILOVERS:-50}" ;;
  upgrade) run -timeout 0 ./upgrade -length "${LENGTH:-10m}" ;;
  soak) run -timeout 0 -run '^TestSoak$' ./soak -binary "$root/bin/locksidecar" -length "${LENGTH:-30m}" -results RESULTS.md ;;
  overload) run -timeout 15m -run '^TestOverload$' ./overload -binary "$root/bin/locksidecar" -results RESULTS.md ;;
  *) echo "test/campaign/run.sh: what is $kind?" >&2; exit 2 ;;
esac
