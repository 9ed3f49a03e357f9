#!/usr/bin/env bash
# Publishes the npm packages of a release: release/publish-npm.sh DIST VERSION [--dry-run]. Those of the platforms come first, because the others need them.
# What the registry has already is left out, so a job that failed can be run again.
set -euo pipefail
cd "$1/npm"
number=${2#v}
case $number in *-*) channel=next ;; *) channel=latest ;; esac
for package in locksidecar-server-{linux,darwin}-*-"$number".tgz "locksidecar-server-$number.tgz" "locksidecar-$number.tgz"; do
  name=$(tar -xzOf "$package" package/package.json | node -p 'JSON.parse(require("fs").readFileSync(0)).name')
  if [ -z "${3:-}" ] && npm view "$name@$number" version >/dev/null 2>&1; then
    echo "$name $number is published already"
  else
    npm publish "./$package" --access public --tag "$channel" ${3:+"$3"} ${ACTIONS_ID_TOKEN_REQUEST_URL:+--provenance}
  fi
done
