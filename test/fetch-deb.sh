#!/bin/sh
# Unpacks Debian packages of another release into a folder, with all that they depend on, for tests on servers that this system does
# not have. It installs nothing, and needs no root.
#
#   test/fetch-deb.sh KEYRING 'ARCHIVE SUITE COMPONENT…' FOLDER PACKAGE…
#
# apt does the work, with a state of its own in FOLDER. It verifies the archive's signature with KEYRING, and all checksums. In this state no package is
# installed, so all libraries come, also libc6: those of this machine may be older. FOLDER/bin gets each program of the named packages,
# which runs with the libraries in FOLDER. A folder that was completed with the same arguments is left as it is.
set -eu
[ $# -ge 4 ] || { sed -n 's/^#   /usage: /p' "$0" >&2; exit 2; }
keyring=$1 source=$2 folder=$3
args="$*"
shift 3
[ "$(cat "$folder/complete" 2>/dev/null)" != "$args" ] || exit 0
fail() { echo "fetch-deb: $*" >&2; exit 1; }
[ -r "$keyring" ] || fail "there is no $keyring: install the package that has it"
for program in apt-get dpkg-deb; do command -v $program >/dev/null || fail "packages are fetched with $program, which this system does not have"; done

rm -rf "$folder"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/bin"
folder=$(cd "$folder" && pwd)
apt=$folder/apt
trap 'rm -rf "$apt"' EXIT
echo "deb [signed-by=$(realpath "$keyring")] $source" >"$apt/sources"
: >"$apt/status"
# Valid-Until is not checked, because it keeps an old index with known vulnerabilities from the programs that a machine runs. Here nothing is
# installed: the programs serve a test on this machine. Indexes of sid are valid for a week, and some mirrors are further behind.
cat >"$apt/conf" <<END
Dir::State "$apt"; Dir::State::lists "$apt/lists"; Dir::State::status "$apt/status";
Dir::Cache "$apt"; Dir::Cache::archives "$apt/archives";
Dir::Etc::sourcelist "$apt/sources"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::parts "/dev/null";
Acquire::Languages "none"; Acquire::Check-Valid-Until "false"; Acquire::Retries "3";
APT::Install-Recommends "false"; APT::Sandbox::User "$(id -un)"; APT::Update::Error-Mode "any";
END
export APT_CONFIG="$apt/conf"
apt-get update -qq
apt-get install -y -qq --download-only "$@"
for deb in "$apt"/archives/*.deb; do dpkg-deb -x "$deb" "$folder"; done

loader=$(find "$folder" -name 'ld-linux*.so.*' -type f | head -n 1)
libraries=$(find "$folder"/lib* "$folder"/usr/lib* -name 'lib*.so.*' -printf '%h\n' 2>/dev/null | sort -u | paste -sd :)
for package in "$@"; do
  for program in $(dpkg-deb -c "$apt/archives/$package"_*.deb | sed -nE 's|.* \./(usr/s?bin/[^/ ]+)( -> .*)?$|\1|p'); do
    [ "$(head -c 2 "$folder/$program")" != '#!' ] || { ln -s "$folder/$program" "$folder/bin/"; continue; }
    printf '#!/bin/sh\nexec "%s" --library-path "%s" --argv0 "%s" "%s" "$@"\n' "$loader" "$libraries" "$folder/$program" "$folder/$program" >"$folder/bin/${program##*/}"
    chmod +x "$folder/bin/${program##*/}"
  done
done
chmod -R a+rX "$folder" # servers run as other users
echo "$args" >"$folder/complete"
