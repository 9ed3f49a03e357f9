#!/usr/bin/env bash
# Runs every fuzz target for a time: test/fuzz.sh [10s]. Each begins with the inputs under testdata/fuzz, and with those that it has found on this machine.
# `go run ./internal/testing/fuzzkeep` copies those that reach new code to testdata/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do
  for target in $(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$file"); do
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-10s}" "$(dirname "$file")"
  done
done
