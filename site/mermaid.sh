#!/usr/bin/env bash
# Downloads from npm the script that draws the pictures of the documentation site, so that the site fetches nothing from elsewhere.
# The theme wants version 12.
set -euo pipefail
cd "$(dirname "$0")"
version=12.3.0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd "$dir" && npm pack --silent "mermaid@$version" >/dev/null && tar xzf "mermaid-$version.tgz" package/dist/mermaid.min.js)
echo "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3  $dir/package/dist/mermaid.min.js" | sha256sum -c --quiet
mv "$dir/package/dist/mermaid.min.js" .venv/mermaid.min.js
touch .venv/mermaid.min.js
