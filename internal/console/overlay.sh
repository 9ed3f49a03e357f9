#!/bin/sh
# Usage: overlay.sh DIR. Makes DIR/overlay.json for `go build -overlay`.
#
# A template of Go can call any method of its data by name. So the linker keeps all methods of all types, which makes
# the sidecar's binary 6 MB larger. The console's templates call none. The overlay is the installed Go's own
# text/template without this call; a build without the overlay works the same.
set -eu
source="$(go env GOROOT)/src/text/template/exec.go"
mkdir -p "$1"
sed 's/method := ptr\.MethodByName(fieldName); method/method := (reflect.Value{}); method/' "$source" > "$1/exec.go"
if grep -q 'ptr\.MethodByName' "$1/exec.go"; then
  echo "overlay.sh: text/template of $(go version) calls methods in another way" >&2
  exit 1
fi
printf '{"Replace": {"%s": "%s/exec.go"}}\n' "$source" "$(cd "$1" && pwd)" > "$1/overlay.json"
