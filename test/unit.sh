#!/usr/bin/env bash
# The tests of all packages but e2e: `make test-unit`. Without vet, which `make vet` has run. Without atexit_sleep_ms=0, the race detector would sleep
# for a second after the tests of each package.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOFLAGS=-buildvcs=false GORACE=atexit_sleep_ms=0

# On a machine without the databases, such as one with macOS: all packages whose tests start none.
if [ "${1:-}" = --without-servers ]; then
  exec go test -race -vet=off $(go list ./... | grep -Ev '/(bench|e2e|internal/testing|test)(/|$)|/store/(etcd|mysql|postgres|redis)(/|$)')
fi

# Packages that start no goroutine. The race detector has nothing to say of them.
plain='api bench/explain bench/internal/plot internal/exitcode internal/licenses internal/tracing proxy/internal/wire store/key store/postgres/queries
  test/model test/mutants test/proofs test/release test/vuln'

# The suite of all stores runs here on memory://, PostgreSQL and etcd, and on store/cas with a server that fails. On Redis and MySQL, which
# are backends of store/cas, it runs each night, as do the backends' tests in a group of servers.
nightly='^(TestConformance|TestBackendOnACluster|TestBackendWithSentinel|TestBackendBehindAPooler)$'

# The longest package is named first, so that it begins first. Most packages wait half of the time, so more run at the same time than there are processors.
# The tests of lease run once more with sidecars that keep keys.
(. test/as-released.sh; go test -p=1 -vet=off $(printf './%s ' $plain) && exec go test -vet=off ./lease -keep) & first=$!
go test -race -p=1 -vet=off -skip "$nightly" ./store/redis ./store/mysql & second=$!
failed=0
go test -race -p=3 -vet=off ./store/postgres $(go list ./... | grep -v -e /e2e$ -e /store/postgres$ -e /store/redis$ -e /store/mysql$ \
  $(printf -- '-e locksidecar/%s$ ' $plain)) || failed=1
wait $first || failed=1
wait $second || failed=1
exit $failed
