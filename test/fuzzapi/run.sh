#!/bin/sh
# Sends calls of all kinds, and compares the answers with the OpenAPI document: test/fuzzapi/run.sh [--seconds 60 (on each store)] [--seed N, which repeats a failure].
set -eu
cd "$(dirname "$0")"
../deps.sh go fuzzapi
make -C ../.. build
exec .venv/bin/python run.py "$@"
