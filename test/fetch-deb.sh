#!/bin/sh
# Unpacks Debian packages of another release into a folder, for tests on servers that this system does not have. It installs nothing.
#
#   test/fetch-deb.sh KEYRING ARCHIVE SUITE COMPONENT FOLDER PACKAGE…
#
# KEYRING verifies the archive's Release file, which has the SHA256 of the index, which has those of the packages. Dependencies are not
# followed: name the libraries, also libc6. FOLDER/bin gets a program for each one in FOLDER/usr/bin and FOLDER/usr/sbin, which starts it with the
# libraries of FOLDER. A folder that was completed with the same arguments is left as it is.
set -eu
keyring=$1 archive=$2 suite=$3 component=$4 folder=$5
args="$*"
shift 5
[ "$(cat "$folder/complete" 2>/dev/null)" != "$args" ] || exit 0
fail() { echo "fetch-deb: $*" >&2; exit 1; }
[ -r "$keyring" ] || fail "there is no $keyring: install the package that has it"
for program in curl gpgv dpkg-deb; do command -v "$program" >/dev/null || fail "there is no $program: install it"; done
arch=$(dpkg --print-architecture)
index=$component/binary-$arch/Packages.gz

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/debs"
folder=$(cd "$folder" && pwd)
get() { curl -sSfL --retry 3 --max-time 300 -o "$2" "$archive/$1" || fail "$archive/$1 cannot be downloaded"; }
verify() { # FILE SHA256
  [ -n "$2" ] && echo "$2  $1" | sha256sum -c --quiet - || fail "$1 does not have the SHA256 of its index: '$2'"
}

get "dists/$suite/InRelease" "$folder/InRelease"
gpgv -q --keyring "$keyring" --output "$folder/Release" "$folder/InRelease" 2>"$folder/gpgv" || fail "$keyring does not verify $archive/dists/$suite: $(cat "$folder/gpgv")"
get "dists/$suite/$index" "$folder/Packages.gz"
verify "$folder/Packages.gz" "$(awk -v f="$index" '/^SHA256:/ {on = 1; next} /^[^ ]/ {on = 0} on && $3 == f {print $1}' "$folder/Release")"

for package in "$@"; do
  # The index may have a package more than once. The first one is taken.
  found=$(gunzip -c "$folder/Packages.gz" | awk -v p="$package" 'BEGIN {RS = ""; FS = "\n"}
    $1 == "Package: " p && !done {done = 1; for (i = 1; i <= NF; i++) {if ($i ~ /^Filename: /) f = substr($i, 11); if ($i ~ /^SHA256: /) s = substr($i, 9)}; print f, s}')
  [ -n "$found" ] || fail "$archive $suite $component has no package $package"
  deb=$folder/debs/${found##*/}
  deb=${deb%% *}
  get "${found% *}" "$deb"
  verify "$deb" "${found#* }"
  dpkg-deb -x "$deb" "$folder"
done

libraries=$(find "$folder" -name '*.so*' -path '*/lib*' -exec dirname {} + | sort -u | paste -sd :)
loader=$(find "$folder" -name 'ld-linux*.so.*' -type f | head -n 1)
[ -n "$loader" ] || fail "the packages have no loader: name libc6"
for program in "$folder"/usr/bin/* "$folder"/usr/sbin/*; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  if head -c 2 "$program" | grep -q '#!'; then ln -sf "$program" "$folder/bin/"; continue; fi
  printf '#!/bin/sh\nexec "%s" --library-path "%s" "%s" "$@"\n' "$loader" "$libraries" "$program" > "$folder/bin/${program##*/}"
  chmod +x "$folder/bin/${program##*/}"
done
rm -rf "$folder/gpgv" "$folder/debs" "$folder/Packages.gz"
echo "$args" > "$folder/complete"
