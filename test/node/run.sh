#!/usr/bin/env bash
# Runs the manifests in containers on a real Kubernetes of one node (as root; compiles Kubernetes and Helm the first time, then takes 3 minutes).
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
make -C "$root" build
"$root/test/deps.sh" go helm node-real
# All programs of Kubernetes in one file. It is compiled again only if its sources or its version change.
version=1.36.3
kube=$root/.bin/kube-$version
[ "$kube" -nt go.mod ] && [ "$kube" -nt kube/main.go ] || CGO_ENABLED=0 go build -buildvcs=false -gcflags='k8s.io/...=-dwarf=false' \
  -ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v$version" -o "$kube" ./kube
KUBE=$kube HELM=$root/.bin/helm exec go test -count=1 -vet=off -timeout 20m -v .
