#!/bin/sh
# Checks that a tag may be released: release/check-tag.sh v1.2.3. It is refused if a file names another version, or if the changelog does not have it.
set -eu
cd "$(dirname "$0")/.."
version=$(release/version.py)
[ "$version" = "$1" ] || { echo "the tag is $1, and the files have $version: release/version.py $1 writes it" >&2; exit 1; }
release/notes.sh "$1"
