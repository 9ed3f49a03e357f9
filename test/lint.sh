#!/usr/bin/env bash
# Runs the linters, and looks at the formatting and at the forge's workflows: `make lint`.
set -euo pipefail
cd "$(dirname "$0")/.."
lint=$PWD/.bin/golangci-lint
. test/as-released.sh
.bin/actionlint -shellcheck= -pyflakes=
"$lint" fmt --diff
git ls-files '*.py' | xargs python3 -c 'import ast, sys; [ast.parse(open(file).read(), file) for file in sys.argv[1:]]' # also those that run at night alone
for module in . clients/go clients/go/locksidecarcron clients/go/locksidecark8s clients/go/locksidecarotel bench/clients/go bench/peers test/campaign test/console; do (cd $module && "$lint" run); done
