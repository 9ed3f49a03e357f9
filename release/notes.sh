#!/bin/sh
# Prints the section of CHANGELOG.md that belongs to a version: release/notes.sh v1.2.3 [FILE].
# It fails if there is none, if it is empty, or if it is that of unreleased changes.
set -eu
version=${1#v}
case $version in
  [0-9]*) ;;
  *) echo "release/notes.sh: $1 is no version" >&2; exit 1 ;;
esac
file=${2:-CHANGELOG.md}
notes=$(awk -v version="$version" '
  /^## / { inside = index($0, "## [" version "]") == 1; next }
  inside && !/^\[[^]]*\]: / { print }' "$file" | sed '/./,$!d')
[ -n "$notes" ] || {
  echo "$file has no section \"## [$version]\" with changes: give [Unreleased] this name and the date, and begin a new one" >&2
  exit 1
}
printf '%s\n' "$notes"
