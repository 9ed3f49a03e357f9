#!/usr/bin/env bash
# After a release: freezes its migrations, and lets upgrades be tested from it: release/freeze.sh v1.2.3. The clone must have the tag.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 schema=store/postgres/schema code=store/postgres/code
sums() { git ls-tree --name-only "$version" "$1/" | grep 'sql$'; }
git rev-parse --verify --quiet "refs/tags/$version" >/dev/null || { echo "there is no tag $version" >&2; exit 1; }
{
  echo "# The migrations of $version: files of the schema never change again, the code only with another one. Written by release/freeze.sh."
  for file in $(sums $schema); do echo "$(git show "$version:$file" | sha256sum | cut -d ' ' -f 1)  ${file##*/}"; done
  echo "$(for file in $(sums $code); do git show "$version:$file"; done | sha256sum | cut -d ' ' -f 1)  code"
} >$schema/released.sha256
echo "$version" >test/campaign/upgrade/PREVIOUS
echo "now run go test -run Released ./store/postgres and test/campaign/run.sh upgrade, and commit"
