#!/bin/sh
# Runs a file of tests. Its output comes in one piece.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ruby -w "$1" >"$log" 2>&1; then
  echo "$1: $(grep -E '^[0-9]+ runs, ' "$log")"
else
  echo "$1:"; cat "$log"; exit 1
fi
