#!/usr/bin/env bash
# Makes the archive that Maven Central takes, of the jars that were built and tested: release/maven-bundle.sh DIST ARCHIVE. Each file gets its checksums, and a
# signature with the only secret key of this user's GnuPG. Maven's own plugin would build the jars again, in the job that has the key.
set -euo pipefail
archive=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$1/maven/." "$work"
cd "$work"
find . -type f | while read -r file; do
  gpg --batch --yes --armor --detach-sign "$file"
  md5sum "$file" | cut -d ' ' -f 1 >"$file.md5"
  sha1sum "$file" | cut -d ' ' -f 1 >"$file.sha1"
done
rm -f "$archive"
zip -qr "$archive" .
