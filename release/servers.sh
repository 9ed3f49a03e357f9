#!/usr/bin/env bash
# Packs the binaries of a release for PyPI and npm: release/servers.sh DIST VERSION. They are those of the archives in DIST, so each program
# is built once.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(cd "$1" && pwd) number=${2#v}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }; }
python=$PWD/clients/python/.venv/bin/python

# One static program is for glibc and for musl. macOS: the first version that Go supports.
for platform in \
  linux_amd64=linux-x64=manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64 \
  linux_arm64=linux-arm64=manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64 \
  darwin_amd64=darwin-x64=macosx_12_0_x86_64 \
  darwin_arm64=darwin-arm64=macosx_12_0_arm64; do
  IFS='=' read -r name npm wheel <<<"$platform"
  tar -xzf "$dist/locksidecar_${number}_$name.tar.gz" -C "$work"
  binary=$work/locksidecar_${number}_$name

  cp -r clients/python/server "$work/wheel"
  cp LICENSE "$binary/THIRD_PARTY_LICENSES" "$binary/locksidecar" "$work/wheel/"
  WHEEL_PLATFORM=$wheel quietly "$python" -m build --wheel --no-isolation --outdir "$dist/python" "$work/wheel"

  mkdir -p "$work/npm/bin"
  cp LICENSE "$binary/THIRD_PARTY_LICENSES" "$work/npm/"
  cp "$binary/locksidecar" "$work/npm/bin/"
  NPM=$npm node -e '
    const { version, license, repository, homepage, bugs } = require("./clients/node/server/package.json");
    const [os, cpu] = process.env.NPM.split("-");
    const description = `The locksidecar sidecar for ${os} on ${cpu}: install @locksidecar/server`;
    const files = ["bin", "LICENSE", "THIRD_PARTY_LICENSES"];
    console.log(JSON.stringify({ name: `@locksidecar/server-${os}-${cpu}`, version, description, license, repository, homepage, bugs, os: [os], cpu: [cpu], files }, null, 2));
  ' >"$work/npm/package.json"
  (cd "$work/npm" && quietly npm pack --pack-destination "$dist/npm")
  rm -rf "$work/wheel" "$work/npm"
done

cp -r clients/node/server "$work/npm"
cp LICENSE "$work/npm/"
(cd "$work/npm" && quietly npm pack --pack-destination "$dist/npm")
printf '%-10s %s\n' servers "$(ls "$dist"/python/locksidecar_server-*.whl | wc -l) wheels and $(ls "$dist"/npm/locksidecar-server-*.tgz | wc -l) npm packages with the archives' binaries"
