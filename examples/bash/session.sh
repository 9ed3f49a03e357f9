#!/usr/bin/env bash
# Bash with curl alone: an explicit session, a lock in it, and the events of the session.
set -euo pipefail
socket=${LOCKSIDECAR_SOCKET:-$HOME/.locksidecar/locksidecar.sock}
[ -S "$socket" ] || { echo "session: there is no sidecar at $socket; is it running, and is LOCKSIDECAR_SOCKET right?" >&2; exit 1; }

api() { # METHOD PATH [curl's options]
  curl -sS --unix-socket "$socket" -X "$1" "http://localhost/v1/$2" "${@:3}"
}
member() { # NAME: a number or text of a JSON object; jq is better, if it is installed
  sed -E "s/.*\"$1\":\"?([^,\"}]*).*/\1/"
}
event() { # the next event of the session, into $event and $data
  local line
  event='' data=''
  while IFS= read -r -t 20 -u "${stream[0]}" line; do
    case $line in
      'event: '*) event=${line#event: } ;;
      'data: '*) data=${line#data: } ;;
      '') [ -z "$event" ] || return 0 ;;
    esac
  done
  echo "the session has ended, or is silent" >&2
  return 1
}

# The session lives as long as this curl, which ends with the script: the trap ends it. After a
# kill -9 of the script, curl ends at its next write to the closed pipe. -N: do not buffer.
coproc stream { exec curl -sSN --unix-socket "$socket" -X POST http://localhost/v1/sessions -d '{"name":"session.sh"}'; }
curl_pid=$stream_PID
trap 'kill "$curl_pid" 2>/dev/null || true' EXIT

event
[ "$event" = session ]
id=$(member session <<< "$data")
echo "a session is open"

# Each call is a curl of its own, and names the session.
grant=$(api PUT locks/report:daily -H "Lock-Session: $id" -d '{"wait_ms":5000}')
token=$(member token <<< "$grant")
echo "report:daily is mine, fencing token $token"

status=$(api PUT locks/report:daily -o /dev/null -w '%{http_code}' -d '{"bind":"ttl"}')
[ "$status" = 423 ] || { echo "somebody else got it too: $status" >&2; exit 1; }
echo "another caller asks: 423, it is held"

api DELETE "locks/report:daily?token=$token" -o /dev/null -f -H "Lock-Session: $id"
echo "and released"

# max_hold_ms: nobody waits longer than two seconds for this lock.
grant=$(api PUT locks/report:hourly -H "Lock-Session: $id" -d '{"wait_ms":5000,"max_hold_ms":2000}')
token=$(member token <<< "$grant")
echo "report:hourly is mine, fencing token $token"

# The place of the work, while the events of the session are read. This "work" takes too long.
event
[ "$event" = lost ] || { echo "expected lost, got $event $data" >&2; exit 1; }
echo "lost: $(member reason <<< "$data")"

status=$(api DELETE "locks/report:hourly?token=$token" -o /dev/null -w '%{http_code}' -H "Lock-Session: $id")
[ "$status" = 410 ] || { echo "a lost lock was released: $status" >&2; exit 1; }
echo "a release fails, too: 410"
