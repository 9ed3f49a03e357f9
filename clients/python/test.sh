#!/bin/sh
# Lints and tests the Python client, and runs the contract suite with it against bin/locksidecar: `make test-python`.
set -eu
cd "$(dirname "$0")"
.venv/bin/python unasync.py --check
.venv/bin/ruff check
.venv/bin/ruff format --check
.venv/bin/mypy
.venv/bin/python -m pytest
CONTRACT_OVER=tcp CONTRACT_STORES=memory .venv/bin/python -m pytest -q tests/contract
