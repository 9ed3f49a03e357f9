#!/usr/bin/env bash
# Installs what this machine lacks: test/deps.sh WHAT…
#   go         what the tests of the sidecar start: PostgreSQL, PgBouncer, MariaDB, Redis, etcd, Prometheus, and a C compiler for the race detector
#   python node ruby php rust contract examples java contrib    what the tests of the clients need
#   image container node-real browser fuzzapi site          what the folders of these tests need
#   campaign   nothing, but it fails where the campaign cannot run
#   etcd                                          etcd's server, compiled into .bin
#   golangci-lint actionlint govulncheck cyclonedx-gomod vale helm    tools, compiled into .bin
#   package=NAME…                                 packages of Debian
# What is there already is looked at in a moment. Packages are installed as root, or by sudo; on a system without apt it says what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .bin
# Several targets of make may ask at the same time.
if command -v flock >/dev/null; then exec 9>.bin/deps.lock; flock 9; fi

packages=()
needs() { # needs PROGRAM PACKAGE…: the packages, if there is no such program
  type -P "$1" >/dev/null || packages+=("${@:2}") # not command -v, which finds the functions of this script, too
}

gem_of() { # gem_of FEATURE PACKAGE: the package, if this Ruby has no such library
  ruby -e "require '$1'" 2>/dev/null || packages+=("$2")
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

php_class() { # php_class FILE PACKAGE: the package, if Debian's folder has no such class
  [ -e "/usr/share/php/$1.php" ] || packages+=("$2")
}

install() {
  [ "${#packages[@]}" -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "missing: ${packages[*]}; install them with this system's package manager" >&2; exit 1
  elif [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    echo "missing: ${packages[*]}; as root: apt-get install ${packages[*]}" >&2; exit 1
  fi
  echo "installing ${packages[*]}"
  as_root apt-get update -qq
  # RUNLEVEL=1: the tests start servers of their own, so the packages need not.
  as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${packages[@]}"
  if [ -d /run/systemd/system ]; then
    case " ${packages[*]} " in *" redis-server "*) as_root systemctl disable -q --now redis-server ;; esac
    case " ${packages[*]} " in *" mariadb-server "*) as_root systemctl disable -q --now mariadb ;; esac
    case " ${packages[*]} " in *" prometheus "*) as_root systemctl disable -q --now prometheus ;; esac
  fi
  packages=()
}

any() { # any PATTERN…: whether a file of one of these names is there
  compgen -G "$1" >/dev/null || { [ $# -gt 1 ] && any "${@:2}"; }
}

go_tests() {
  command -v initdb >/dev/null || any '/usr/lib/postgresql/*/bin/initdb' '/opt/homebrew/opt/postgresql*/bin/initdb' \
    '/usr/local/opt/postgresql*/bin/initdb' '/usr/pgsql-*/bin/initdb' || packages+=(postgresql)
  [ -x /usr/sbin/pgbouncer ] || needs pgbouncer pgbouncer
  needs redis-server redis-server
  needs redis-cli redis-tools
  needs mariadbd mariadb-server
  command -v prometheus >/dev/null && command -v promtool >/dev/null || packages+=(prometheus)
  needs curl curl
  needs openssl openssl
  needs git git
  command -v clang >/dev/null || needs gcc gcc libc6-dev
  install
  # Its package has the server's version in its name.
  any '/usr/share/postgresql/*/extension/plpgsql_check.control' '/usr/pgsql-*/share/extension/plpgsql_check.control' \
    '/opt/homebrew/share/postgresql*/extension/plpgsql_check.control' '/usr/local/share/postgresql*/extension/plpgsql_check.control' || \
    packages+=("postgresql-$(ls /usr/lib/postgresql | sort -n | tail -1)-plpgsql-check")
  install
  etcd
}

etcd() {
  local server
  server=.bin/etcd-$(sed -n 's/.*etcd\/server\/v3 v//p' test/etcd/go.mod)
  # Without a workspace, in which Go reads all that the modules ask for, and finds a package of one of them in two.
  [ -x "$server" ] || (. test/as-released.sh; cd test/etcd && GOWORK=off go build -ldflags='-s -w' -o "../../$server" .)
}

# tool PACKAGE VERSION: a program in .bin. Each is compiled outside of our module, with the versions that its authors tested: in one mod file for all of them,
# they would not compile.
tool() {
  local name=${1##*/}
  if [ ! -x ".bin/$name-$2" ]; then
    (. test/as-released.sh; CGO_ENABLED=${cgo:-0} GOBIN=$PWD/.bin go install -ldflags='-s -w' -gcflags='github.com/...=-dwarf=false' -gcflags='k8s.io/...=-dwarf=false' "$1@v$2")
    mv ".bin/$name" ".bin/$name-$2"
  fi
  ln -sfn "$name-$2" ".bin/$name"
}

# made STAMP FILE…: whether the stamp is younger than all files.
made() {
  local file
  [ -e "$1" ] || return
  for file in "${@:2}"; do [ ! "$file" -nt "$1" ] || return; done
}

# venv FOLDER REQUIREMENTS [CLIENT]: a virtual environment with these packages, and with the client of this repository.
venv() {
  made "$1/installed" "$2" ${3:+"$3/requirements-dev.txt" "$3/pyproject.toml"} && return
  python3 -c 'import ensurepip' 2>/dev/null || { packages+=(python3-venv); install; }
  python3 -m venv "$1"
  (cd "$(dirname "$2")" && "$OLDPWD/$1/bin/python" -m pip install -q --disable-pip-version-check -r "$(basename "$2")")
  [ -z "${3:-}" ] || "$1/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation -e "$3"
  touch "$1/installed"
}

node_modules() {
  command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' || {
    echo "the Node client needs Node 20 or later, and npm: see https://nodejs.org/en/download" >&2; exit 1; }
  made clients/node/node_modules/installed clients/node/package-lock.json && return
  (cd clients/node && npm ci --no-audit --no-fund)
  touch clients/node/node_modules/installed
}

for what in "$@"; do
  case $what in
    go) go_tests ;;
    python) needs openssl openssl; venv clients/python/.venv clients/python/requirements-dev.txt clients/python ;;
    contract) venv clients/contract/.venv clients/contract/curl/requirements.txt ;;
    node) needs openssl openssl; node_modules ;;
    examples)
      needs ruby ruby; needs php php-cli; install
      # npm installs the client of this repository, as a link.
      made examples/node/node_modules/installed examples/node/package.json clients/node/src/* && continue
      node_modules
      (cd clients/node && npm run --silent build)
      (cd examples/node && npm install --no-audit --no-fund --no-package-lock --silent)
      touch examples/node/node_modules/installed ;;
    ruby)
      needs ruby ruby; needs rubocop rubocop; needs rspec ruby-rspec-core ruby-rspec-expectations
      gem_of async ruby-async ;;
    php)
      needs php php-cli; needs openssl openssl; needs phpunit phpunit; needs composer composer
      php_class Symfony/Component/Yaml/Yaml php-symfony-yaml; php_class Psr/Log/LoggerInterface php-psr-log ;;
    rust) # with rustup, or packages that are new enough; those without -web are from 2022
      needs cargo cargo-web rustc-web; needs rustfmt rustfmt-web; needs cargo-clippy rust-web-clippy; needs gcc gcc libc6-dev; needs redis-server redis-server ;;
    etcd) etcd ;;
    golangci-lint) tool github.com/golangci/golangci-lint/v2/cmd/golangci-lint 2.15.0 ;;
    actionlint) tool github.com/rhysd/actionlint/cmd/actionlint 1.7.12 ;;
    govulncheck) tool golang.org/x/vuln/cmd/govulncheck 1.1.4 ;;
    cyclonedx-gomod) tool github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod 1.10.0 ;;
    vale) needs gcc gcc libc6-dev; install; cgo=1 tool github.com/vale-cli/vale/v3/cmd/vale 3.21.0 ;; # two minutes of C
    helm) tool helm.sh/helm/v4/cmd/helm 4.3.1 ;;
    java) needs openssl openssl; needs javac default-jdk-headless; needs mvn maven ;;
    contrib)
      needs ruby ruby; needs sidekiq ruby-sidekiq; needs puma puma; needs redis-server redis-server; gem_of active_job ruby-activejob
      needs php php-cli; needs phpunit phpunit; php_class Symfony/Component/Lock/Key php-symfony-lock; php_class Psr/Log/LoggerInterface php-psr-log
      php_class Illuminate/Contracts/Cache/Lock php-illuminate-contracts; any '/usr/sbin/php-fpm*' || packages+=(php-fpm); install
      venv clients/python/tests/frameworks/.venv clients/python/requirements-contrib.txt clients/python
      made clients/node/test/frameworks/node_modules clients/node/test/frameworks/package-lock.json && continue
      # Not npm ci: it refuses a lock file without the optional packages of all systems.
      (cd clients/node/test/frameworks && npm install --no-save --no-audit --no-fund --ignore-scripts)
      touch clients/node/test/frameworks/node_modules ;;
    image)
      needs buildah buildah
      [[ $(ldd "$(command -v busybox)" 2>&1) == *'not a dynamic'* ]] || packages+=(busybox-static)
      [ -e /etc/ssl/certs/ca-certificates.crt ] || packages+=(ca-certificates) ;;
    node-real)
      needs containerd containerd; needs runc runc; needs etcd etcd-server; needs openssl openssl; needs ip iproute2
      [ -x /usr/lib/cni/ptp ] || packages+=(containernetworking-plugins) ;;
    network) needs ip iproute2 ;;
    container) needs mmdebstrap mmdebstrap ;;
    browser) needs chromium chromium fonts-dejavu-core ;;
    fuzzapi) venv test/fuzzapi/.venv test/fuzzapi/requirements.txt ;;
    site) venv site/.venv site/requirements.txt; made site/.venv/mermaid.min.js site/mermaid.sh || site/mermaid.sh ;;
    campaign)
      [ "$(uname)-$(id -u)" = Linux-0 ] || { echo "the fault campaign runs on Linux, as root: it mounts a disk that can be full. Try sudo" >&2; exit 1; } ;;
    package=*) needs "" "${what#package=}" ;;
    *) echo "test/deps.sh: what is $what?" >&2; exit 2 ;;
  esac
done
install
