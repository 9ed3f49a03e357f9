#!/usr/bin/env bash
# Bash with `locksidecar run --limit`: at most two jobs at a time, in all pods, each in a slot of its own.
set -euo pipefail
command -v locksidecar >/dev/null || { echo "slots: no locksidecar in PATH: make build, then PATH=\$PWD/bin:\$PATH" >&2; exit 1; }
locksidecar health > /dev/null || exit # prints the fault

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# One job. mkdir fails if another job is in the same slot.
cat > "$dir/job" <<'SH'
set -e
mkdir "$1/slot-$LOCKSIDECAR_SLOT"
echo "$LOCKSIDECAR_SLOT $LOCKSIDECAR_TOKEN" >> "$1/done"
rmdir "$1/slot-$LOCKSIDECAR_SLOT"
SH

jobs=()
for _ in 1 2 3 4 5 6; do
  locksidecar run encode:video --limit 2 --wait=30s -- sh "$dir/job" "$dir" 2>> "$dir/errors" &
  jobs+=($!)
done
for job in "${jobs[@]}"; do
  wait "$job"
done
sort -n "$dir/done" | cut -d' ' -f1 | uniq -c | while read -r count slot; do
  echo "slot $slot: $count jobs"
  [ "$slot" -lt 2 ] || { echo "there is no slot $slot" >&2; exit 1; }
done
[ "$(wc -l < "$dir/done")" = 6 ] && [ ! -s "$dir/errors" ] || { cat "$dir/errors" >&2; exit 1; }
