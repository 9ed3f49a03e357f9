#!/bin/sh
# Tests the clients' modules for frameworks with the real frameworks, and runs their examples. APScheduler and node-cron are small: their tests
# and examples are among those of the clients.
set -eu
cd "$(dirname "$0")/.."
test/deps.sh go python node contrib
make build
(cd clients/python && tests/frameworks/.venv/bin/mypy src/locksidecar/contrib/*.py tests/frameworks/*.py && tests/frameworks/.venv/bin/python -m pytest tests/frameworks)
(cd clients/node && npm run --silent build && npx tsc -p test/frameworks && node --test test/frameworks/*.test.mjs test/frameworks/build/*.test.js)
for module in clients/go/*/go.mod; do
  (cd "${module%/go.mod}" && go vet ./... && LOCKSIDECAR_BINARY=$OLDPWD/bin/locksidecar go test -race -vet=off -count=1 ./...)
done
clients/ruby/test.sh --contrib
clients/php/test.sh --contrib
ln -sfn ../../clients/node/test/frameworks/node_modules examples/contrib/node_modules
examples/run.py --contrib
