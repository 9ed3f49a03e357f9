#!/usr/bin/env bash
# Uses the console in a real browser, with real locks: test/console/run.sh. With `pictures` it makes the pictures of docs/console.md again. In a Go
# module of its own, because the sidecar does not depend on the driver of the browser.
set -euo pipefail
cd "$(dirname "$0")"
../deps.sh browser
make -C ../.. build
root=$(cd ../.. && pwd)
. ../as-released.sh
case ${1:-} in
  pictures) exec go test -count=1 -vet=off -v -run '^TestPictures$' ./... -binary "$root/bin/locksidecar" -pictures "$root/docs/pictures" ;;
  *) exec go test -count=1 -vet=off -v ./... -binary "$root/bin/locksidecar" ;;
esac
