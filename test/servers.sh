#!/usr/bin/env bash
# Tests with servers that this system does not have, of Debian trixie, Debian sid and Ubuntu 24.04. They are unpacked into .bin, with the libraries
# that they need; nothing is installed. Delete a folder to fetch it anew.
#   test/servers.sh redis          unpacks Valkey 8.1 and Redis 8.0, for LOCKSIDECAR_TEST_REDIS_SERVER
#   test/servers.sh test-redis     the tests of the store on Redis with both
#   test/servers.sh mysql          unpacks MySQL 9 and MySQL 8.0, each with MySQL Router, for LOCKSIDECAR_TEST_MYSQL
#   test/servers.sh test-mysql [.bin/mysql8/bin]   with MySQL 9 (or these programs): the tests of the store, the end-to-end tests that run
#                                  on each store and those of MySQL, both also through MySQL Router, and the contract suite
# Debian's key verifies the package with Ubuntu's key. (Ubuntu has other architectures than amd64 at http://ports.ubuntu.com/ubuntu-ports.)
set -euo pipefail
cd "$(dirname "$0")/.."
debian=/usr/share/keyrings/debian-archive-keyring.gpg
ubuntu=.bin/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg

fetch() { # fetch SUITE FOLDER PACKAGE…
  case $1 in
    noble) test/fetch-deb.sh $ubuntu "${UBUNTU:-http://archive.ubuntu.com/ubuntu} noble main universe" "${@:2}" ;;
    *) test/fetch-deb.sh $debian "${DEBIAN:-http://deb.debian.org/debian} $1 main" "${@:2}" ;;
  esac
}

redis() {
  fetch trixie .bin/trixie-valkey valkey-server valkey-tools
  fetch trixie .bin/trixie-redis redis-server redis-tools
}

mysql() {
  fetch sid .bin/mysql9 mysql-server-core mysql-client-core mysql-router
  fetch trixie .bin/ubuntu-keyring ubuntu-archive-keyring
  fetch noble .bin/mysql8 mysql-server-core-8.0 mysql-client-core-8.0 mysql-router
}

race() { GORACE=atexit_sleep_ms=0 go test -race -vet=off -count=1 "$@"; }

[ -r $debian ] || test/deps.sh package=debian-archive-keyring
export GOFLAGS=-buildvcs=false
case ${1:-} in
  redis | mysql) "$1" ;;
  test-redis)
    redis; test/deps.sh go
    for server in .bin/trixie-valkey/bin/valkey-server .bin/trixie-redis/bin/redis-server; do
      $server --version
      LOCKSIDECAR_TEST_REDIS_SERVER=$PWD/$server race ./store/redis
    done ;;
  test-mysql)
    mysql; test/deps.sh go contract; make build
    programs=${2:-.bin/mysql9/bin}
    export LOCKSIDECAR_TEST_MYSQL=$PWD/$programs
    "$programs/mysqld" --no-defaults --version; "$programs/mysqlrouter" --version
    race ./store/mysql
    # The tests that run on each store begin with stores(t or sharing(t.
    each=$(awk -F '[^A-Za-z0-9]' '/^func / { name = $2 } /^\t(stores|sharing).t, / && name ~ /^Test/ { print name }' e2e/*_test.go | sort -u | paste -sd '|')
    for router in "" -mysql-router; do
      (. test/as-released.sh; go test -vet=off -count=1 ./e2e -run "^($each|TestMySQL.*)$" -stores=mysql $router)
    done
    CONTRACT_STORES=mysql clients/contract/.venv/bin/python clients/contract/curl/run.py ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
