#!/usr/bin/env bash
# What runs each night, on one machine: `make nightly`. The forge runs the same parts as jobs: .github/workflows/nightly.yml. All parts run, also if one fails.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=""
part() {
  echo "=== $*"
  "$@" || failed="$failed; $*"
}
part make vuln
part test/fuzzapi/run.sh --seconds 300
part make test-clients
part make test-e2e
part make test-e2e E2E_STORES=memory,postgres E2E_KEEP=200ms
part test/stores.sh
part test/servers.sh test-mysql
part test/servers.sh test-redis
part make test-contrib
part make test-java
part make test-rust
part test/console/run.sh
part make test-k8s
part test/node/run.sh
part make site
part site/pictures.py
part make release-dry
part make mutants
[ -z "$failed" ] || { echo "failed: ${failed#; }"; exit 1; }
