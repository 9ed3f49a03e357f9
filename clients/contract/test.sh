#!/usr/bin/env bash
# Runs the contract suite with curl, on the stores of CONTRACT_STORES, and behind PgBouncer: `make test-contract`. With --pooled it runs only behind
# PgBouncer, with curl, Python and Node, each twice: without LISTEN, where sidecars poll for hand-offs, and with a URL for LISTEN that does
# not lead through PgBouncer.
set -euo pipefail
cd "$(dirname "$0")/../.."
contract=$PWD/clients/contract
python=$contract/.venv/bin/python
if [ "${1:-}" = --pooled ]; then
  test/deps.sh go contract python node
  make build
  (cd clients/node && npm test)
  for listen in --never --direct; do
    "$contract/curl/pgbouncer.py" $listen "$python" "$contract/curl/run.py"
    (cd clients/python && "$contract/curl/pgbouncer.py" $listen .venv/bin/python -m pytest -q tests/contract)
    (cd clients/node && "$contract/curl/pgbouncer.py" $listen npm run contract)
  done
  exit
fi
"$contract/.venv/bin/ruff" check -q "$contract/curl"
"$contract/.venv/bin/ruff" format -q --check "$contract/curl"
(cd "$contract/curl" && "$python" -m unittest -q)
# The runs wait most of the time, so those on the stores and the one behind PgBouncer run at the same time.
"$contract/curl/pgbouncer.py" --direct "$python" "$contract/curl/run.py" & pooled=$!
failed=0
"$python" "$contract/curl/run.py" || failed=1
wait $pooled || failed=1
exit $failed
