#!/usr/bin/env bash
# Builds what a release publishes, except the image: release/build.sh FOLDER VERSION. No network is asked for anything but
# the modules and packages that are not on this machine yet.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=${1:?a folder} version=${2:?a version, such as v1.2.3}
mkdir -p "$dist"
dist=$(cd "$dist" && pwd)
number=${version#v}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# pack FOLDER NAME: an archive that is the same for the same files: sorted, of nobody, with the date of the sources.
pack() {
  chmod -R u=rwX,go=rX "$1/$2"
  tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$1" -cf - "$2" | gzip -n9
}

# quietly COMMAND…: its output counts only if it fails.
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; return 1; }; }

say() { printf '%-10s %s\n' "$1" "$2"; }

go run ./internal/licenses > "$dist/THIRD_PARTY_LICENSES"
say licences "$(grep -c '^\[' "$dist/THIRD_PARTY_LICENSES") texts of all that is linked: THIRD_PARTY_LICENSES"

for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do
  name=locksidecar_${number}_${platform/\//_}
  mkdir "$work/$name"
  GOOS=${platform%/*} GOARCH=${platform#*/} quietly make --no-print-directory build VERSION="$version" BINARY="$work/$name/locksidecar"
  quietly "$SBOM" bin -json -std -licenses -noserial -notimestamp -version "$version" -output "$dist/$name.cdx.json" "$work/$name/locksidecar"
  cp LICENSE README.md "$dist/THIRD_PARTY_LICENSES" "$work/$name/"
  pack "$work" "$name" > "$dist/$name.tar.gz"
  say binary "$name.tar.gz, its parts in $name.cdx.json"
done

cd clients/python
quietly .venv/bin/python -m build --no-isolation --outdir "$work/python" .
rm -rf build
cd ../..
mkdir -p "$dist/python"
cp "$work"/python/*.whl "$dist/python/"
for source in "$work"/python/*.tar.gz; do
  tar -C "$work/python" -xzf "$source"
  name=$(basename "$source" .tar.gz)
  pack "$work/python" "$name" > "$dist/python/$name.tar.gz"
done
say python "$(cd "$dist/python" && echo *)"

mkdir -p "$dist/npm"
cd clients/node
quietly npm pack --pack-destination "$dist/npm"
cd ../..
say npm "$(cd "$dist/npm" && echo *)"

mkdir -p "$dist/gem"
cd clients/ruby
quietly gem build locksidecar.gemspec --output "$dist/gem/locksidecar-$(ruby -r ./lib/locksidecar/version -e 'print Locksidecar::VERSION').gem"
cd ../..
say gem "$(cd "$dist/gem" && echo *)"

mkdir -p "$dist/composer" "$work/composer"
cp -r clients/php "$work/composer/locksidecar-php-$number"
rm -rf "$work/composer/locksidecar-php-$number/"{tests,test.sh,phpunit.xml,phpstan.neon}
pack "$work/composer" "locksidecar-php-$number" > "$dist/composer/locksidecar-php-$number.tar.gz"
say composer "$(cd "$dist/composer" && echo *)"

mkdir -p "$dist/crates"
quietly cargo package --locked --no-verify --allow-dirty --manifest-path clients/rust/Cargo.toml --target-dir "$work/crates"
cp "$work/crates/package/locksidecar-$number.crate" "$dist/crates/"
say crates "$(cd "$dist/crates" && echo *)"

release/servers.sh "$dist" "$version"

release/go-modules.py "$dist/go" "$version"
say go "$(find "$dist/go" -name '*.mod' | wc -l) modules, as a proxy serves them"

# The tests have run before. Maven Central wants a jar with the sources and one with the documentation beside each jar.
quietly mvn -B -ntp -f clients/java clean deploy -Prelease -DskipTests -Dmaven.install.skip=true \
  -Dproject.build.outputTimestamp="$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" "-DaltDeploymentRepository=dist::file://$work/maven"
mkdir -p "$dist/maven"
(cd "$work/maven" && find . -name '*.jar' ! -name '*-tests.jar' -o -name '*.pom') | while read -r file; do
  install -D -m 644 "$work/maven/$file" "$dist/maven/$file"
done
say maven "$(cd "$dist/maven" && find . -name '*.jar' | wc -l) jars in $(find "$dist/maven" -name '*.pom' | wc -l) artifacts"

mkdir -p "$dist/chart"
cp -rL deploy/chart "$work/chart"
find "$work/chart" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
quietly "$HELM" package "$work/chart" --destination "$dist/chart"
say chart "$(cd "$dist/chart" && echo *)"

(cd "$dist" && sha256sum ./*.tar.gz ./*.cdx.json THIRD_PARTY_LICENSES | sed 's# \./# #' > SHA256SUMS)
say checksums "SHA256SUMS of $(wc -l < "$dist/SHA256SUMS") files"
