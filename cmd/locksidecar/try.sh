#!/bin/sh
# Starts the built sidecar on the embedded store, and prints a curl that gets a lock: `make run`. Without a variable its socket is in the user's home,
# so no root is needed, and commands and clients find it.
set -eu
cd "$(dirname "$0")/../.."
# The embedded store is meant here, and no mistake that the log must warn of.
[ -n "${LOCKSIDECAR_STORE_URL_FILE:-}" ] || export LOCKSIDECAR_STORE_URL="${LOCKSIDECAR_STORE_URL:-memory://}"
socket=${LOCKSIDECAR_SOCKET:-$HOME/.locksidecar/locksidecar.sock}
[ -n "${LOCKSIDECAR_SOCKET:-}" ] || [ ! -e /run/locksidecar ] || socket=/run/locksidecar/locksidecar.sock
printf '\nThe sidecar starts here; Ctrl-C stops it. In another terminal, get a lock for a minute:\n\n'
printf "  curl --unix-socket %s -X PUT http://localhost/v1/locks/deploy:prod -d '%s'\n\n" "$socket" '{"bind":"ttl","ttl_ms":60000}'
command -v curl >/dev/null ||
  printf 'There is no curl on this machine; this does the same:\n\n  bin/locksidecar --socket %s acquire deploy:prod --ttl 60s\n\n' "$socket"
exec bin/locksidecar serve
