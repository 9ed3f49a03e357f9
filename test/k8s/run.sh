#!/usr/bin/env bash
# Tests the Kubernetes manifests, the chart and the injection on a real API server (compiles 10 minutes the first time): `make test-k8s`.
#
# Without debug information, the API server needs less time and memory to compile and link. Without vet, which would look at all of Kubernetes.
# Without -trimpath, because Kubernetes' test server looks for its own sources.
set -euo pipefail
cd "$(dirname "$0")"
make -C ../.. build
../deps.sh helm
HELM=$(cd ../.. && pwd)/.bin/helm CGO_ENABLED=0 exec go test -count=1 -vet=off -ldflags='-s -w' -gcflags='k8s.io/...=-dwarf=false' ./...
