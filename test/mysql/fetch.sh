#!/bin/sh
# Puts MySQL's programs for tests into a folder, and installs nothing: test/mysql/fetch.sh FOLDER
#
# Debian's stable releases have MariaDB only, so on Debian the packages are those of its suite sid; on Ubuntu they are those of the
# machine's own release. MYSQL_SUITE and MYSQL_PACKAGES name others. apt gets them from the archive that this machine uses, with a state
# of its own, and verifies the archive's signature and all checksums. The programs run with the libraries of the packages, because
# those of this machine may be older.
#
# APT_OPTIONS are further options of apt-get, such as -oAcquire::Check-Valid-Until=false for a mirror of sid that is behind.
set -eu
folder=${1:?the folder is missing}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || { echo "MySQL is fetched with apt: this system has none" >&2; exit 1; }
. /etc/os-release
case $ID in
  ubuntu) suite=${MYSQL_SUITE:-$VERSION_CODENAME} packages=${MYSQL_PACKAGES:-mysql-server-core-8.0 mysql-client-core-8.0 mysql-router} ;;
  *) suite=${MYSQL_SUITE:-sid} packages=${MYSQL_PACKAGES:-mysql-server-core mysql-client-core mysql-router} ;;
esac
keys=/usr/share/keyrings/$ID-archive-keyring.gpg
archive=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(COMPONENT)' 'Created-By: Packages' | awk -v id="$ID" 'tolower($2) == id && $1 !~ /security/ { print $1; exit }')
[ -n "$archive" ] && [ -f "$keys" ] || { echo "no archive of $ID among apt's sources, or no $keys: run apt-get update, or name another system" >&2; exit 1; }

rm -rf "$folder"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
folder=$(cd "$folder" && pwd)
trap 'rm -rf "$folder/apt"; [ -x "$folder/mysqld" ] || rm -rf "$folder"' EXIT
main=main; [ "$ID" != ubuntu ] || main='main universe'
echo "deb [signed-by=$keys] $archive $suite $main" >"$folder/apt/sources"
: >"$folder/apt/status" # nothing is installed, so all libraries come
cat >"$folder/apt/conf" <<END
Dir::State "$folder/apt"; Dir::State::lists "$folder/apt/lists"; Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt"; Dir::Cache::archives "$folder/apt/archives";
Dir::Etc::sourcelist "$folder/apt/sources"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::parts "/dev/null";
Acquire::Languages "none"; APT::Install-Recommends "false"; APT::Sandbox::User "$(id -un)";
END
export APT_CONFIG="$folder/apt/conf"
apt-get update -qq -o APT::Update::Error-Mode=any ${APT_OPTIONS:-}
apt-get install -y -qq --download-only ${APT_OPTIONS:-} $packages
for package in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$package" "$folder/root"; done

root=$folder/root
loader=$(find "$root" -name 'ld-linux*.so.*' | head -1)
libraries=$(find "$root/usr/lib" "$root/lib" -name 'lib*.so.*' -printf '%h\n' 2>/dev/null | sort -u | tr '\n' ':')
for program in mysqld mysql mysqldump mysqlrouter; do
  path=$(find "$root/usr/bin" "$root/usr/sbin" -name $program)
  [ -n "$path" ] || { echo "the packages have no program $program" >&2; rm -f "$folder/mysqld"; exit 1; }
  more=
  [ $program != mysqlrouter ] || more=--DEFAULT.plugin_folder=$(dirname "$(find "$root/usr/lib" -name connection_pool.so)")
  printf '#!/bin/sh\nexec %s --library-path %s --argv0 %s %s %s "$@"\n' "$loader" "$libraries" "$path" "$path" "$more" >"$folder/$program"
  chmod +x "$folder/$program"
done
chmod -R a+rX "$folder" # servers run as another user
"$folder/mysqld" --no-defaults --version
"$folder/mysqlrouter" --version
