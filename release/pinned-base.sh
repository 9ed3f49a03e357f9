#!/bin/sh
# Fails if a release is not built from a base image with a digest: release/pinned-base.sh VERSION GO_IMAGE. A version is a release if it is only a tag:
# for all other commits, git describe adds -1-gabcdef or -dirty.
set -eu
printf '%s\n' "$1" | grep -qE '^v[0-9]+\.[0-9]+\.[0-9]+(-(rc|alpha|beta)[.0-9]*)?$' || exit 0
printf '%s\n' "${2:-}" | grep -qE '@sha256:[0-9a-f]{64}$' || {
  echo "$1 is a release: GO_IMAGE is '${2:-}', and must end in @sha256: and a digest; the release workflow asks the registry for it (docs/releasing.md)" >&2
  exit 1
}
