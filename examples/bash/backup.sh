#!/usr/bin/env bash
# Bash with `locksidecar run`: one of all pods makes the backup, and the others go on at once.
set -euo pipefail
command -v locksidecar >/dev/null || { echo "backup: no locksidecar in PATH: make build, then PATH=\$PWD/bin:\$PATH" >&2; exit 1; }
locksidecar health > /dev/null || exit # prints the fault

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# The backup itself. It gets its fencing token, and writes it with its data.
cat > "$dir/make-backup" <<'SH'
echo "$LOCKSIDECAR_TOKEN" > "$1/backup"
read -r _ < "$1/gate" # the work: it lasts until the others have tried
SH
mkfifo "$dir/gate"

# The key is written once.
backup() { locksidecar run backup:nightly "$@"; }

backup -- sh "$dir/make-backup" "$dir" &
first=$!
until [ -s "$dir/backup" ]; do
  kill -0 "$first" # still running
  sleep 0.01       # the pause of a poll
done
echo "pod 1 makes the backup, fencing token $(cat "$dir/backup")"

code=0
backup -- echo "this must not be printed" 2> "$dir/refusal" || code=$?
[ "$code" = 75 ] || { echo "pod 2 ended with $code, not 75: $(cat "$dir/refusal")" >&2; exit 1; }
echo "pod 2 skips the backup: exit code 75"

# The third wants its turn in any case, so it waits.
backup --wait=30s -- sh -c 'echo "pod 3 got its turn, fencing token $LOCKSIDECAR_TOKEN"; echo "$LOCKSIDECAR_TOKEN" > "$1"' - "$dir/third" &
third=$!
until locksidecar get backup:nightly -o json | grep -Eq '"queue_length": ?1'; do sleep 0.01; done
echo "pod 3 waits in the queue"

echo > "$dir/gate"
wait "$first"
echo "pod 1 is done"
wait "$third"
[ "$(cat "$dir/third")" -gt "$(cat "$dir/backup")" ] || { echo "the fencing token did not grow" >&2; exit 1; }
