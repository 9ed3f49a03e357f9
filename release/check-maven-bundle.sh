#!/usr/bin/env bash
# Makes the archive for Maven Central with a key that is thrown away, and looks at it as Central does: release/check-maven-bundle.sh DIST.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'gpgconf --kill all; rm -rf "$work"' EXIT
export GNUPGHOME=$work/gnupg
mkdir -m 700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key 'a release that is only tried' default default 1d 2>/dev/null
release/maven-bundle.sh "$1" "$work/bundle.zip"
unzip -q "$work/bundle.zip" -d "$work/bundle"
cd "$work/bundle"
count=0
while read -r file; do
  gpg --batch --quiet --verify "$file.asc" "$file" 2>/dev/null || { echo "the signature of $file is wrong" >&2; exit 1; }
  echo "$(cat "$file.md5")  $file" | md5sum --check --quiet
  echo "$(cat "$file.sha1")  $file" | sha1sum --check --quiet
  count=$((count + 1))
done < <(find . -name '*.jar' -o -name '*.pom')
find . -name '*.pom' | while read -r pom; do
  for element in name description url license developer scm; do
    grep -q "<$element>" "$pom" || grep -q '<parent>' "$pom" || { echo "Maven Central refuses $pom: it has no <$element>" >&2; exit 1; }
  done
done
[ "$(find . -type f | wc -l)" = $((count * 4)) ] || { echo "files without a signature or checksum:" >&2; find . -type f >&2; exit 1; }
printf '%-10s %s\n' central "the archive for Maven Central: $count files, each with a signature that is right and its checksums"
