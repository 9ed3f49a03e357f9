#!/usr/bin/env bash
# What the tests of the stores leave out for each change: the suite of all stores on Redis and MySQL, with groups of servers, and on PostgreSQL with each
# source of histories in each way to connect.
set -euo pipefail
cd "$(dirname "$0")/.."
test/deps.sh go
export GOFLAGS=-buildvcs=false GORACE=atexit_sleep_ms=0
go test -race -vet=off -count=1 ./store/redis ./store/mysql
go test -race -vet=off -count=1 -timeout 30m -run '^(TestConformance(ByHistorySource|BehindPgBouncer)|TestStrangeDefaults)$' ./store/postgres -combinations
