#!/usr/bin/env bash
# Builds the image for both platforms without a registry: release/image.sh FOLDER VERSION. This machine's Go stands in for the
# base image (test/image/base.sh). As root, with buildah, busybox-static and ca-certificates. It checks that the image has the
# binaries of the archives, byte by byte, and the licences.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(cd "$1" && pwd) version=$2
number=${version#v}

work=$(mktemp -d)
# What buildah mounts belongs to other users.
trap 'buildah umount --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/storage" "$work/run" > "$work/storage.conf"
export CONTAINERS_STORAGE_CONF=$work/storage.conf BUILDAH_ISOLATION=chroot TMPDIR=$work

flags=$(test/image/base.sh localhost/locksidecar-go)
for arch in amd64 arm64; do
  BUILDER=buildah VERSION=$version ANY_BASE=yes PLATFORM=linux/$arch IMAGE=localhost/locksidecar-$arch GO_IMAGE=localhost/locksidecar-go \
    GOPROXY=off BUILD_FLAGS=$flags release/build-image.sh >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  container=$(buildah from --pull=never --arch "$arch" "localhost/locksidecar-$arch")
  root=$(buildah mount "$container")
  name=locksidecar_${number}_linux_$arch
  tar -xzf "$dist/$name.tar.gz" -O "$name/locksidecar" | cmp - "$root/locksidecar"
  { cat LICENSE; echo; cat "$dist/THIRD_PARTY_LICENSES"; } | cmp - <(gunzip -c "$root/licenses/LICENSES.gz")
  buildah rm "$container" >/dev/null
done
buildah manifest create locksidecar >/dev/null
for arch in amd64 arm64; do buildah manifest add --arch "$arch" locksidecar "localhost/locksidecar-$arch" >/dev/null; done
mkdir -p "$dist/image"
buildah manifest push --quiet --all locksidecar "oci-archive:$dist/image/locksidecar_${number}.oci.tar:$version"
printf '%-10s %s\n' image "locksidecar_${number}.oci.tar for amd64 and arm64; it has the archives' binaries, byte by byte, and the licences"
