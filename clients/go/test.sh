#!/usr/bin/env bash
# Tests the client for Go against the built sidecar, and runs the contract suite through it on the stores of CONTRACT_STORES: `make test-go-client`.
set -euo pipefail
cd "$(dirname "$0")"
export LOCKSIDECAR_BINARY=$PWD/../../bin/locksidecar GORACE=atexit_sleep_ms=0
[ "$(go list -deps ./... | grep -v clients/go | xargs go list -f '{{if not .Standard}}{{.ImportPath}}{{end}}')" = "" ] || { echo "the client imports more than the standard library" >&2; exit 1; }
GOOS=windows go build . # it is not run there
go vet ./...
go test -race -vet=off -count=1 ./...
cd ../..
go run -race ./clients/contract/go
CONTRACT_OVER=tcp CONTRACT_STORES=memory go run -race ./clients/contract/go
