#!/bin/sh
# Looks at and tests the PHP client, and runs the contract suite with it against bin/locksidecar: `make test-php`. With --contrib it runs the tests of
# Symfony Lock and of Laravel's contracts, which need their packages.
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" = --contrib ]; then
  exec phpunit --testsuite frameworks
fi
find src tests -name '*.php' -print0 | xargs -0 -P 2 -n 1 php -l | grep -v '^No syntax errors' && exit 1
if command -v phpstan >/dev/null; then phpstan analyse --no-progress; else echo "the types: not checked, there is no phpstan"; fi
# Both wait most of the time.
log=$(mktemp)
phpunit --testsuite contract >"$log" 2>&1 & contract=$!
failed=0
phpunit --testsuite client || failed=1
wait "$contract" || failed=1
cat "$log"
rm "$log"
exit "$failed"
