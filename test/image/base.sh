#!/bin/sh
# Makes an image that stands in for golang:1.26 where no registry is reachable: a shell
# (busybox) and this machine's CA certificates. This machine's Go, modules and build cache
# are mounted when it is used: it prints the flags for that.
#
#   make image BUILDER=buildah GO_IMAGE=localhost/go BUILD_FLAGS="$(test/image/base.sh localhost/go)"
#
# As root. Needs buildah, busybox-static and ca-certificates (Debian's names).
set -eu
name=${1:?the name of the image, such as localhost/go}

container=$(buildah from scratch)
trap 'buildah rm "$container" >/dev/null' EXIT
root=$(buildah mount "$container")
mkdir -p "$root/bin" "$root/tmp" "$root/etc/ssl/certs" "$root/usr/local/go"
chmod 1777 "$root/tmp"
cp "$(command -v busybox)" "$root/bin/busybox"
chroot "$root" /bin/busybox true 2>/dev/null || { echo "busybox is not static: install busybox-static" >&2; exit 1; }
busybox --list | while read -r applet; do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"

# Not where the Dockerfile's cache mounts are: those would hide them.
buildah config --env PATH=/usr/local/go/bin:/bin --env GOTOOLCHAIN=local \
  --env GOMODCACHE=/host/modules --env GOCACHE=/host/build "$container"
buildah commit --quiet "$container" "$name" >/dev/null
echo "-v $(go env GOROOT):/usr/local/go:ro -v $(go env GOMODCACHE):/host/modules:ro -v $(go env GOCACHE):/host/build"
