#!/usr/bin/env bash
# Makes the tags of the client for Go and of the modules beside it, on the present commit: release/go-tags.sh v1.2.3. It pushes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
release/check-tag.sh "${1:?a version, such as v1.2.3}" >/dev/null
tags=()
for file in clients/go/go.mod clients/go/*/go.mod; do
  [ -e "$file" ] || continue
  git tag -s -m "$1" "${file%/go.mod}/$1"
  tags+=("${file%/go.mod}/$1")
done
echo "git push origin ${tags[*]}"
