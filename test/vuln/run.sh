#!/usr/bin/env bash
# Looks for known vulnerabilities in what the code of all modules calls: `make vuln`. The database is on the internet (VULN_DB names another). If it cannot
# be reached, this fails, because nothing was checked.
set -euo pipefail
cd "$(dirname "$0")/../.."
db=${VULN_DB:-https://vuln.go.dev}
why=$(curl -sSfL --max-time 20 -o /dev/null "$db/index/db.json" 2>&1) || { echo "vulnerabilities: not checked: $db: $why" >&2; exit 1; }
test/deps.sh govulncheck
vuln=$PWD/.bin/govulncheck

# First it must find a vulnerability that is there on purpose. Otherwise, a scanner that is broken would look like code without
# vulnerabilities.
found=0
(cd test/vuln/planted && "$vuln" -db "file://$PWD/db" ./... >/dev/null 2>&1) || found=$?
[ $found = 3 ] || { echo "govulncheck does not find the vulnerability of test/vuln/planted" >&2; exit 1; }

# test/k8s is left out: it is all of Kubernetes, and only tests start it.
for module in . clients/go clients/go/locksidecarcron clients/go/locksidecark8s clients/go/locksidecarotel bench/clients/go bench/peers test/campaign test/console test/image; do
  echo "vulnerabilities: $module"
  (cd $module && "$vuln" -db "$db" -test ./...)
done
echo "vulnerabilities: not checked: test/k8s, an API server that only tests start"
