#!/usr/bin/env bash
# Builds the image without a registry, and looks at it (as root): `make test-image`. In a Go module of its own, because its dependencies are not
# those of the sidecar.
set -euo pipefail
cd "$(dirname "$0")"
../deps.sh go image
. ../as-released.sh
exec go test -count=1 -vet=off -v ./...
