#!/bin/sh
# Starts the built sidecar on the embedded store, and prints a curl that gets a lock: `make run`. The socket lies in a folder of the user's
# own, so no root is needed.
set -eu
cd "$(dirname "$0")/../.."
base="${XDG_RUNTIME_DIR:-}"
[ -n "$base" ] && [ -w "$base" ] || base=/tmp
dir="$base/locksidecar-$(id -u)"
mkdir -p -m 700 "$dir"
[ -O "$dir" ] || { echo "$dir belongs to somebody else; set XDG_RUNTIME_DIR to a folder of yours" >&2; exit 1; }
export LOCKSIDECAR_SOCKET="${LOCKSIDECAR_SOCKET:-$dir/locksidecar.sock}" LOCKSIDECAR_LOG_FORMAT="${LOCKSIDECAR_LOG_FORMAT:-text}"
printf '\nThe sidecar starts here; Ctrl-C stops it. In another terminal, get a lock for a minute:\n\n'
printf "  curl --unix-socket %s -X PUT http://localhost/v1/locks/deploy:prod -d '%s'\n\n" "$LOCKSIDECAR_SOCKET" '{"bind":"ttl","ttl_ms":60000}'
command -v curl >/dev/null ||
  printf 'There is no curl on this machine; this does the same:\n\n  bin/locksidecar --socket %s acquire deploy:prod --ttl 60s\n\n' "$LOCKSIDECAR_SOCKET"
exec bin/locksidecar serve
