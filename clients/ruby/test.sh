#!/bin/sh
# Lints and tests the Ruby client, and runs the contract suite with it against bin/locksidecar: `make test-ruby`. Two files of tests at a time, because
# they wait most of the time. With --contrib it runs those of Sidekiq and ActiveJob, which need their packages.
set -eu
cd "$(dirname "$0")"
if [ "${1:-}" = --contrib ]; then
  exec ruby -w test/frameworks_test.rb
fi
rubocop --format simple
find test -maxdepth 1 -name '*_test.rb' ! -name frameworks_test.rb ! -name types_test.rb -print0 | sort -z | xargs -0 -P 2 -n 1 test/quietly.sh
rbs=$(command -v rbs || command -v rbs3.1) || { echo "the types in sig: not checked, there is no rbs"; exit 0; }
"$rbs" -I sig validate --silent
test/quietly.sh test/types_test.rb
# Once more, and each call of the package is compared with its type.
export RUBYOPT=-rrbs/test/setup RBS_TEST_TARGET='Locksidecar,Locksidecar::*' RBS_TEST_OPT='-I sig' RBS_TEST_LOGLEVEL=error
for name in client fiber hang nested testing; do test/quietly.sh "test/${name}_test.rb"; done
