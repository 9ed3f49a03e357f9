#!/usr/bin/env bash
# Builds the image of this checkout: `make image`. From the environment: VERSION, IMAGE (its name), PLATFORM=linux/arm64, BUILDER=podman,
# GO_IMAGE, GOPROXY, GOSUMDB (the Dockerfile's arguments), BUILD_FLAGS.
#
# The same sources make the same image, because all dates are the date of the commit. Docker gets this date as an argument (with buildx, add
# --output=…,rewrite-timestamp=true), the other builders get it as a flag. They also get BUILDPLATFORM, because Debian 12's buildah does
# not know its own platform.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
builder=${BUILDER:-$(docker info >/dev/null 2>&1 && echo docker || command -v buildah || command -v podman || true)}
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

[ -n "$builder" ] || { echo "an image is built by docker, buildah or podman: none is installed" >&2; exit 1; }
[ -n "${ANY_BASE:-}" ] || release/pinned-base.sh "$version" "${GO_IMAGE:-}"

flags=(--platform "${PLATFORM:-linux/$(go env GOARCH)}" -t "${IMAGE:-ghcr.io/locksidecar/locksidecar:$version}" --build-arg "VERSION=$version"
  --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)" --build-arg "SOURCE_DATE_EPOCH=$date")
[[ $builder == *docker* ]] || flags+=(--timestamp "$date" --build-arg "BUILDPLATFORM=linux/$(go env GOHOSTARCH)")
for argument in GO_IMAGE GOPROXY GOSUMDB; do
  [ -z "${!argument:-}" ] || flags+=(--build-arg "$argument=${!argument}")
done
# shellcheck disable=SC2086 # several flags in a word
set -x
exec "$builder" build "${flags[@]}" ${BUILD_FLAGS:-} .
