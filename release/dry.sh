#!/usr/bin/env bash
# Builds a release into dist/ twice, compares, and checks it: `make release-dry`. Its version is VERSION, if that is one, or that of the files.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-(rc|alpha|beta)[.0-9]*)?$ ]] || version=$(release/version.py)
export SBOM=$PWD/.bin/cyclonedx-gomod HELM=$PWD/.bin/helm

rm -rf dist
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
release/build.sh dist "$version"
release/build.sh "$again" "$version" >/dev/null
(cd dist && find . -type f -exec sha256sum {} +) | (cd "$again" && sha256sum --check --quiet -)
printf '%-10s %s\n' again "built a second time, all $(find dist -type f | wc -l) files are the same, byte by byte"
release/check.py dist "$version"
release/check-maven-bundle.sh dist
release/publish-npm.sh dist "$version" --dry-run >"$again/log" 2>&1 || { cat "$again/log" >&2; exit 1; }
if release/notes.sh "$version" > dist/NOTES.md 2>/dev/null; then
  printf '%-10s %s\n' notes "NOTES.md, from CHANGELOG.md"
else
  rm dist/NOTES.md
  printf '%-10s %s\n' notes "none: CHANGELOG.md has no section for $version yet, so its tag would be refused"
fi
if [ "$(id -u)" = 0 ] && command -v buildah >/dev/null && [[ $(ldd "$(command -v busybox)" 2>&1) == *'not a dynamic'* ]]; then
  release/image.sh dist "$version"
else
  printf '%-10s %s\n' image "not built: that takes root, buildah and busybox-static"
fi
if [ "$(id -u)" = 0 ] && command -v mmdebstrap >/dev/null; then
  release/container.sh dist
else
  printf '%-10s %s\n' container "not tried: that takes root and mmdebstrap"
fi
printf '%-10s %s\n' "not run" "what needs the forge: signatures, provenance, the pushes to the registries" \
  'in all' "$SECONDS s"
