#!/bin/sh
# Lints and tests the Ruby client, and runs the contract suite with it against bin/locksidecar: `make test-ruby`. Two files of tests at a time, because
# they wait most of the time. With --contrib it runs those of Sidekiq and ActiveJob, which need their packages.
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" = --contrib ]; then
  exec ruby -w test/frameworks_test.rb
fi
rubocop --format simple
rbs=$(command -v rbs || command -v rbs3.1) || rbs=
[ -z "$rbs" ] || "$rbs" -I sig validate --silent
[ -n "$rbs" ] || echo "the types in sig: not checked, there is no rbs"
find test -maxdepth 1 -name '*_test.rb' ! -name frameworks_test.rb -print0 | sort -z | xargs -0 -P 2 -n 1 test/quietly.sh
