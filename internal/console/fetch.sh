#!/usr/bin/env bash
# Downloads the console's JavaScript from npm again, and compares its checksums. To change the version, change it here and in docs/dependencies.md,
# and write the new checksums into vendored.sha256.
set -euo pipefail
cd "$(dirname "$0")"
version=4.0.1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd "$dir" && npm pack --silent "htmx.org@$version" && tar xzf "htmx.org-$version.tgz")
cp "$dir"/package/dist/htmx.min.js "$dir"/package/dist/ext/hx-sse.min.js static/
cd static && sha256sum -c ../vendored.sha256
