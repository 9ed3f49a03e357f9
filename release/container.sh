#!/usr/bin/env bash
# Takes the first lock in a container's root that has Python and Node, and no compiler: release/container.sh DIST. As root, with mmdebstrap. The two
# lines of each language run there in an empty home, and only the packages of DIST are installed.
set -euo pipefail
dist=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mmdebstrap --quiet --variant=essential --include=python3-venv,libstdc++6 "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
# This machine's Node and npm.
node=$(dirname "$(dirname "$(readlink -f "$(command -v node)")")")
cp "$node/bin/node" "$root/usr/bin/"
mkdir -p "$root/usr/lib/node_modules" "$root/dist" "$root/home/ada"
cp -r "$node/lib/node_modules/npm" "$root/usr/lib/node_modules/"
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/bin/npm"
ln -s ../lib/node_modules/npm/bin/npx-cli.js "$root/usr/bin/npx"
cp -r "$dist/python" "$dist/npm" "$root/dist/"
chown 1000:1000 "$root/home/ada"

cat >"$root/first-lock.sh" <<'END'
set -eu
cd
for compiler in cc gcc clang go rustc; do ! command -v $compiler || { echo "there is a compiler: $compiler" >&2; exit 1; }; done
served() {
  "$@" serve 2>log & sidecar=$!
  "$@" health --wait 30s || { cat log >&2; exit 1; }
}
ended() {
  kill $sidecar
  wait $sidecar || { echo "the sidecar ended with $?" >&2; cat log >&2; exit 1; }
}
python3 -m venv venv
venv/bin/pip install -q --no-index --find-links /dist/python "locksidecar[server]"
served venv/bin/locksidecar
venv/bin/python -c 'from locksidecar import Client
with Client().lock("report:daily") as lock: print("python: got it, token", lock.token)'
ended

npm install --offline --no-audit --no-fund --silent /dist/npm/locksidecar-[0-9]*.tgz /dist/npm/locksidecar-server-[0-9]*.tgz "/dist/npm/locksidecar-server-linux-$(node -p process.arch)"-*.tgz
npx --offline @locksidecar/server --version
served node_modules/.bin/locksidecar
node -e 'new (require("locksidecar").Client)().acquire("report:daily").then((lock) => { console.log("node: got it, token", lock.token); return lock.release(); }).then(() => process.exit())'
ended
END
locks=$(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/home/ada chroot --userspec=1000:1000 "$root" sh /first-lock.sh | paste -sd ';')
printf '%-10s %s\n' container "$locks"
