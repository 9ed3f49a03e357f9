# Two commands do all the set-up: `make run` and `make test`.

VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LINT_VERSION := 2.15.0
LINT         := .bin/golangci-lint-$(LINT_VERSION)
VULN_VERSION := 1.1.4
VULN         := .bin/govulncheck-$(VULN_VERSION)
VULN_DB      ?= https://vuln.go.dev
BINARY       := bin/locksidecar
ACTIONLINT   := .bin/actionlint-1.7.12
HELM         := .bin/helm-4.3.1
SBOM         := .bin/cyclonedx-gomod-1.10.0
ETCD         := .bin/etcd-$(shell sed -n 's/.*etcd\/server\/v3 v//p' test/etcd/go.mod)
IMAGE        ?= ghcr.io/locksidecar/locksidecar:$(VERSION)
FUZZTIME     ?= 10s
BENCH        ?= .

PYTHON_CLIENT := clients/python

# The stores that the clients and the examples are tested on: make test-clients STORES=postgres
STORES ?= memory postgres etcd mysql redis
export CONTRACT_STORES = $(STORES)

# The version comes from git describe; stamping fails in checkouts of other users.
export GOFLAGS += -buildvcs=false

# All programs and tests are compiled with the flags of a release, so that Go compiles each package once. Only
# tests with the race detector are not, because it needs cgo.
AS_RELEASED := CGO_ENABLED=0 GOFLAGS='$(GOFLAGS) -tags=grpcnotrace -trimpath'

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z0-9-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :)

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null || \
	 grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST)

# The socket lies in a folder of the user's own, so no root is needed.
run: build ## Build and start the sidecar on the embedded store; prints a curl that gets a lock
	@base="$${XDG_RUNTIME_DIR:-}"; [ -n "$$base" ] && [ -w "$$base" ] || base=/tmp; \
	dir="$$base/locksidecar-$$(id -u)"; mkdir -p -m 700 "$$dir"; \
	[ -O "$$dir" ] || { echo "$$dir belongs to somebody else; set XDG_RUNTIME_DIR to a folder of yours" >&2; exit 1; }; \
	export LOCKSIDECAR_SOCKET="$${LOCKSIDECAR_SOCKET:-$$dir/locksidecar.sock}" LOCKSIDECAR_LOG_FORMAT="$${LOCKSIDECAR_LOG_FORMAT:-text}"; \
	printf '\nThe sidecar starts here; Ctrl-C stops it. In another terminal, get a lock for a minute:\n\n'; \
	printf "  curl --unix-socket %s -X PUT http://localhost/v1/locks/deploy:prod -d '%s'\n\n" "$$LOCKSIDECAR_SOCKET" '{"bind":"ttl","ttl_ms":60000}'; \
	command -v curl >/dev/null || printf 'There is no curl on this machine; this does the same:\n\n  %s --socket %s acquire deploy:prod --ttl 60s\n\n' "$(BINARY)" "$$LOCKSIDECAR_SOCKET"; \
	exec ./$(BINARY) serve

# grpcnotrace: gRPC's own trace pages are templates, which would make the linker keep all methods of all types: 10 MB.
build: ## Build bin/locksidecar, one static file
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BINARY) ./cmd/locksidecar
	@echo "$(BINARY): $$(wc -c < $(BINARY)) bytes"

# You can choose the platform and the builder: make image PLATFORM=linux/arm64 BUILDER=podman. The
# same sources make the same image, because all dates are the date of the commit. Docker gets this date
# as an argument (with buildx, add --output=…,rewrite-timestamp=true), the other builders get it as a flag.
# They also get BUILDPLATFORM, because Debian 12's buildah does not know its own platform.
PLATFORM          ?= linux/$(shell go env GOARCH)
BUILDER           ?= $(shell docker info >/dev/null 2>&1 && echo docker || command -v buildah || command -v podman)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# A release says which base image it was built from. VERSION is a release if it is only a tag: for
# all other commits, git describe adds -1-gabcdef or -dirty.
RELEASE := $(shell echo '$(VERSION)' | grep -E '^v[0-9]+\.[0-9]+\.[0-9]+(-(rc|alpha|beta)[.0-9]*)?$$')

image: $(if $(RELEASE),pinned-base) ## Build the image (IMAGE=name:tag) with docker, buildah or podman; a release needs GO_IMAGE=…@sha256:…
	@[ -n "$(BUILDER)" ] || { echo "an image is built by docker, buildah or podman: none is installed" >&2; exit 1; }
	$(BUILDER) build --platform $(PLATFORM) -t $(IMAGE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
	  $(if $(findstring docker,$(BUILDER)),,--timestamp $(SOURCE_DATE_EPOCH) --build-arg BUILDPLATFORM=linux/$$(go env GOHOSTARCH)) \
	  $(foreach arg,GO_IMAGE GOPROXY GOSUMDB,$(if $($(arg)),--build-arg $(arg)=$($(arg)))) $(BUILD_FLAGS) .

pinned-base:
	@printf '%s\n' '$(GO_IMAGE)' | grep -qE '@sha256:[0-9a-f]{64}$$' || { \
	  echo "$(VERSION) is a release: GO_IMAGE is '$(GO_IMAGE)', and must end in @sha256: and a digest; the release workflow asks the registry for it (docs/releasing.md)" >&2; exit 1; }

test: test-unit-clients test-e2e ## Install what the tests need and run all of them

test-go: test-unit test-e2e ## The sidecar alone: unit, store and end-to-end tests (installs PostgreSQL, PgBouncer, Prometheus)

# Packages that start no goroutine. The race detector has nothing to say of them.
ONE_GOROUTINE := api bench/explain bench/internal/plot internal/exitcode internal/licenses internal/tracing proxy/internal/wire store/key store/postgres/queries \
  test/model test/mutants test/release test/vuln

# -vet=off, because the target `vet` has looked already. Without atexit_sleep_ms=0, the race detector would
# sleep for a second after the tests of each package. The longest package is named first, so that it begins
# first. It waits half of the time, so the packages of one goroutine run at the same time.
#
# The suite of all stores runs here on memory://, PostgreSQL and etcd, and on store/cas with a server that fails. On Redis and
# MySQL, which are backends of store/cas, it runs each night (test-stores), as do the backends' tests in a group of servers.
NIGHTLY_TESTS := ^(TestConformance|TestBackendOnACluster|TestBackendWithSentinel|TestBackendBehindAPooler)$$

test-unit: test-deps vet
	$(AS_RELEASED) go test -p=1 -vet=off $(ONE_GOROUTINE:%=./%) & plain=$$!; \
	GORACE=atexit_sleep_ms=0 go test -race -p=1 -vet=off -skip '$(NIGHTLY_TESTS)' ./store/redis ./store/mysql & brief=$$!; \
	GORACE=atexit_sleep_ms=0 go test -race -vet=off ./store/postgres $$(go list ./... | grep -v -e /e2e$$ -e /store/postgres$$ -e /store/redis$$ -e /store/mysql$$ $(ONE_GOROUTINE:%=-e locksidecar/%$$)); \
	race=$$?; wait $$plain && wait $$brief && exit $$race

test-stores: test-deps ## All tests of the stores on Redis and MySQL, with the suite of all stores
	GORACE=atexit_sleep_ms=0 go test -race -vet=off -count=1 ./store/redis ./store/mysql

# Servers that this system does not have, of Debian trixie, Debian sid and Ubuntu 24.04. They are unpacked into .bin, with the libraries that they need.
# Nothing is installed. Debian's key verifies the package with Ubuntu's key. (Ubuntu has other architectures than amd64 at http://ports.ubuntu.com/ubuntu-ports.)
DEBIAN_KEYRING := /usr/share/keyrings/debian-archive-keyring.gpg
UBUNTU_KEYRING := .bin/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg
DEBIAN         := http://deb.debian.org/debian
UBUNTU         := http://archive.ubuntu.com/ubuntu
TRIXIE         := test/fetch-deb.sh $(DEBIAN_KEYRING) '$(DEBIAN) trixie main'
SID            := test/fetch-deb.sh $(DEBIAN_KEYRING) '$(DEBIAN) sid main'
NOBLE          := test/fetch-deb.sh $(UBUNTU_KEYRING) '$(UBUNTU) noble main universe'
VALKEY         := .bin/trixie-valkey/bin/valkey-server
REDIS8         := .bin/trixie-redis/bin/redis-server
MYSQL9         := .bin/mysql9/bin
MYSQL8         := .bin/mysql8/bin

debian-keyring:
	@[ -r $(DEBIAN_KEYRING) ] || $(MAKE) apt PACKAGES=debian-archive-keyring

redis-servers: debian-keyring ## Unpack Valkey 8.1 and Redis 8.0 of Debian trixie into .bin, for tests with LOCKSIDECAR_TEST_REDIS_SERVER
	$(TRIXIE) .bin/trixie-valkey valkey-server valkey-tools
	$(TRIXIE) .bin/trixie-redis redis-server redis-tools

test-valkey: test-deps redis-servers ## All tests of the store on Redis, with Valkey 8.1 and with Redis 8.0 as the server
	@for server in $(VALKEY) $(REDIS8); do \
	  $$server --version && GORACE=atexit_sleep_ms=0 LOCKSIDECAR_TEST_REDIS_SERVER=$(CURDIR)/$$server go test -race -vet=off -count=1 ./store/redis || exit; \
	done

etcd: $(ETCD) ## Build etcd's server for tests (compiles 1 minute the first time)

$(ETCD): test/etcd/go.mod test/etcd/main.go
	@mkdir -p .bin
	cd test/etcd && $(AS_RELEASED) go build -o ../../$(ETCD) -ldflags='-s -w' .

# It needs protoc (Debian: protobuf-compiler). Its version is in the file's head; others write the same messages.
ETCDPB := store/etcd/internal/etcdpb

etcdpb: ## Make the messages of etcd's API again, after a change of etcd.proto
	go build -o .bin/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
	protoc --plugin=.bin/protoc-gen-go -I $(ETCDPB) --go_out=$(ETCDPB) --go_opt=paths=source_relative etcd.proto

test-combinations: test-deps ## Run the stores' suite with each epoch source in each way to connect to PostgreSQL
	GORACE=atexit_sleep_ms=0 go test -race -vet=off -count=1 -timeout 30m -run '^TestConformanceByEpochSource$$' ./store/postgres -combinations

# The tests of the clients and the examples wait most of the time, and the unit tests compute. So both run
# at the same time.
test-unit-clients: client-deps vet
	@$(MAKE) --no-print-directory --jobs=2 test-unit test-clients

# The end-to-end tests measure times, so nothing else runs at the same time. -count=1, because Go's test
# cache does not know that they build the binary. They build it with the race detector. The tests
# themselves run without it, because unit tests run the same packages with it. One test needs the Python
# client: it follows a trace that begins in an app.
test-e2e: test-deps vet $(PYTHON_CLIENT)/.venv/installed
	$(AS_RELEASED) go test -vet=off -count=1 ./e2e $(if $(E2E_STORES),-stores=$(E2E_STORES))

# Two at a time, because they wait most of the time. The examples use the Node client that test-node builds.
test-clients: build client-deps ## The clients and the examples, against the built sidecar, on all stores (STORES=postgres: on one)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target AFTER=test-node test-python test-node test-contract test-examples

# All packages in one call, because only one apt-get can run at a time.
client-deps: test-deps
	@missing=""; python3 -c 'import ensurepip' 2>/dev/null || missing="python3-venv"; \
	for program in ruby:ruby php:php-cli; do command -v "$${program%:*}" >/dev/null || missing="$$missing $${program#*:}"; done; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"
	@$(MAKE) --no-print-directory --jobs=2 $(PYTHON_CLIENT)/.venv/installed $(CONTRACT)/.venv/installed clients/node/node_modules/installed

# The race detector needs a C compiler; the rest of the build does not. The tests start their
# own Prometheus, so the package's service does not stay on. plpgsql_check comes last, because
# its package has the server's version in its name.
test-deps: $(ETCD)
	@missing=""; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb /opt/homebrew/opt/postgresql*/bin/initdb \
	  /usr/local/opt/postgresql*/bin/initdb /usr/pgsql-*/bin/initdb 2>/dev/null | grep -q . || missing="postgresql"; \
	command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing="$$missing pgbouncer"; \
	command -v redis-server >/dev/null && command -v redis-cli >/dev/null || missing="$$missing redis-server redis-tools"; \
	command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null || missing="$$missing mariadb-server"; \
	command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v openssl >/dev/null || missing="$$missing openssl"; \
	command -v git >/dev/null || missing="$$missing git"; \
	command -v gcc >/dev/null || command -v clang >/dev/null || missing="$$missing gcc libc6-dev"; \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null || { echo "the tests need: $$missing; install them with this system's package manager" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then as=""; elif command -v sudo >/dev/null; then as=sudo; \
	else echo "the tests need: $$missing; as root: apt-get install $$missing" >&2; exit 1; fi; \
	echo "installing $$missing"; \
	$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $$missing || exit; \
	case "$$missing" in *redis*) [ ! -d /run/systemd/system ] || $$as systemctl disable -q --now redis-server;; esac; \
	case "$$missing" in *mariadb*) [ ! -d /run/systemd/system ] || $$as systemctl disable -q --now mariadb;; esac; \
	case "$$missing" in *prometheus*) [ ! -d /run/systemd/system ] || $$as systemctl disable -q --now prometheus;; esac
	@version=$$(ls /usr/lib/postgresql 2>/dev/null | sort -n | tail -1); \
	ls /usr/share/postgresql/$$version/extension/plpgsql_check.control /usr/pgsql-*/share/extension/plpgsql_check.control \
	  /opt/homebrew/share/postgresql*/extension/plpgsql_check.control /usr/local/share/postgresql*/extension/plpgsql_check.control 2>/dev/null | grep -q . || \
	  $(MAKE) apt PACKAGES="postgresql-$$version-plpgsql-check"

test-node: build test-deps clients/node/node_modules/installed ## Lint and test the Node client, and run the contract suite with it (needs Node 20 or later)
	@node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' && command -v npm >/dev/null || \
	{ echo "the Node client needs Node 20 or later, and npm: see https://nodejs.org/en/download" >&2; exit 1; }
	cd clients/node && npm run lint && npm test && npm run contract

clients/node/node_modules/installed: clients/node/package-lock.json
	@command -v npm >/dev/null || { echo "the Node client needs Node 20 or later, and npm: see https://nodejs.org/en/download" >&2; exit 1; }
	cd clients/node && npm ci --no-audit --no-fund
	@touch $@

test-python: build test-deps $(PYTHON_CLIENT)/.venv/installed ## Lint and test the Python client, and run the contract suite with it
	cd $(PYTHON_CLIENT) && .venv/bin/python unasync.py --check && .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/mypy && .venv/bin/python -m pytest

$(PYTHON_CLIENT)/.venv/installed: $(PYTHON_CLIENT)/requirements-dev.txt $(PYTHON_CLIENT)/pyproject.toml
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv $(PYTHON_CLIENT)/.venv
	cd $(PYTHON_CLIENT) && .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt && \
	  .venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation -e .
	@touch $@

JAVA_CLIENT := clients/java

# Tests on the JDK in the path, and those of virtual threads on the newest other one that has them.
test-java: build test-deps java-deps ## Test the client for the JVM with ShedLock and Spring, and run the contract suite with it (needs JDK 17 or later)
	cd $(JAVA_CLIENT) && mvn -B -ntp verify -Pexamples dependency:build-classpath -Dmdep.outputFile=target/classpath
	examples/run.py --jvm
	@for java in "$$(command -v java)" $$(ls -d /usr/lib/jvm/*/bin/java 2>/dev/null); do \
	  version=$$("$$java" -XshowSettings:properties -version 2>&1 | sed -n 's/.*java.specification.version = //p'); \
	  echo "$$version $$java"; done | sort -n | tail -1 | (read -r version java; \
	if [ "$${version%%.*}" -ge 21 ]; then echo "virtual threads: on JDK $$version"; \
	  cd $(JAVA_CLIENT) && mvn -q -B -ntp -pl client verify -Djvm="$$java" -Dexcluded.groups= -Dtest=VirtualThreadsTest,InterruptTest,OutageTest; \
	else echo "virtual threads: not run: they need JDK 21 or later, and the newest here is $$version"; fi)

bench-java: build java-deps ## Measure what the client for the JVM costs a call, beside a bare channel (goal: 60 us)
	cd $(JAVA_CLIENT) && mvn -q -B -ntp -pl client test-compile dependency:build-classpath -Dmdep.outputFile=target/classpath && \
	  java -cp client/target/test-classes:client/target/classes:$$(cat client/target/classpath) io.github.locksidecar.internal.Bench

java-deps:
	@missing=""; command -v javac >/dev/null || missing="default-jdk-headless"; command -v mvn >/dev/null || missing="$$missing maven"; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"

CONTRIB := $(PYTHON_CLIENT)/tests/frameworks/.venv

NODE_CONTRIB := clients/node/test/frameworks

# APScheduler and node-cron are small: their tests and examples are among those of the clients.
test-contrib: build test-deps $(CONTRIB)/installed $(NODE_CONTRIB)/node_modules ## Test the clients' modules for frameworks with the real frameworks, and run their examples
	cd $(PYTHON_CLIENT) && tests/frameworks/.venv/bin/mypy src/locksidecar/contrib/*.py tests/frameworks/*.py && \
	  tests/frameworks/.venv/bin/python -m pytest tests/frameworks
	cd clients/node && npm run --silent build && npx tsc -p test/frameworks && node --test test/frameworks/*.test.mjs test/frameworks/build/*.test.js
	@ln -sfn ../../$(NODE_CONTRIB)/node_modules examples/contrib/node_modules
	examples/run.py --contrib

$(NODE_CONTRIB)/node_modules: $(NODE_CONTRIB)/package-lock.json clients/node/node_modules/installed
	@# Not npm ci: it refuses a lock file without the optional packages of all systems.
	cd $(NODE_CONTRIB) && npm install --no-save --no-audit --no-fund --ignore-scripts
	@touch $@

$(CONTRIB)/installed: $(PYTHON_CLIENT)/requirements-contrib.txt $(PYTHON_CLIENT)/requirements-dev.txt $(PYTHON_CLIENT)/pyproject.toml
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv $(CONTRIB)
	cd $(PYTHON_CLIENT) && tests/frameworks/.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-contrib.txt && \
	  tests/frameworks/.venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation -e .
	@touch $@

CONTRACT := clients/contract
CONTRACT_PYTHON := $(CONTRACT)/.venv/bin/python
CONTRACT_POOLED := $(CURDIR)/$(CONTRACT)/curl/pgbouncer.py

# MySQL itself, because Debian's stable releases have only MariaDB.
mysql-servers: debian-keyring ## Unpack MySQL 9 of Debian sid and MySQL 8.0 of Ubuntu 24.04 into .bin, each with MySQL Router, for tests with LOCKSIDECAR_TEST_MYSQL
	$(SID) .bin/mysql9 mysql-server-core mysql-client-core mysql-router
	$(TRIXIE) .bin/ubuntu-keyring ubuntu-archive-keyring
	$(NOBLE) .bin/mysql8 mysql-server-core-8.0 mysql-client-core-8.0 mysql-router

# The end-to-end tests are those that run on each store, and those of MySQL. All run again through MySQL Router.
MYSQLS     ?= $(MYSQL9)
STORE_TESTS = $(shell awk -F '[^A-Za-z0-9]' '/^func / { name = $$2 } /^\t(stores|sharing).t, / && name ~ /^Test/ { print name }' e2e/*_test.go | sort -u | paste -sd '|')

test-mysql: build test-deps $(CONTRACT)/.venv/installed mysql-servers ## The tests of the store MySQL, the end-to-end tests on it, also through MySQL Router, and the contract suite, with MySQL 9 instead of MariaDB (MYSQLS=.bin/mysql8/bin: with MySQL 8.0)
	@for programs in $(MYSQLS); do \
	  export LOCKSIDECAR_TEST_MYSQL=$(CURDIR)/$$programs; $$programs/mysqld --no-defaults --version && $$programs/mysqlrouter --version && \
	  GORACE=atexit_sleep_ms=0 go test -race -vet=off -count=1 ./store/mysql && \
	  $(AS_RELEASED) go test -vet=off -count=1 ./e2e -run '^($(STORE_TESTS)|TestMySQL.*)$$' -stores=mysql && \
	  $(AS_RELEASED) go test -vet=off -count=1 ./e2e -run '^($(STORE_TESTS)|TestMySQL.*)$$' -stores=mysql -mysql-router && \
	  CONTRACT_STORES=mysql $(CONTRACT_PYTHON) $(CONTRACT)/curl/run.py || exit; \
	done

# The runs wait most of the time, so those on the stores and the one behind PgBouncer run at the same time.
test-contract: build test-deps $(CONTRACT)/.venv/installed ## Run the clients' contract suite with curl, and behind PgBouncer
	$(CONTRACT)/.venv/bin/ruff check -q $(CONTRACT)/curl
	$(CONTRACT)/.venv/bin/ruff format -q --check $(CONTRACT)/curl
	cd $(CONTRACT)/curl && ../.venv/bin/python -m unittest -q
	$(CONTRACT_POOLED) --direct $(CONTRACT_PYTHON) $(CONTRACT)/curl/run.py & pooled=$$!; \
	$(CONTRACT_PYTHON) $(CONTRACT)/curl/run.py; stores=$$?; wait $$pooled && exit $$stores

# Each runs twice: once without LISTEN, where sidecars poll for hand-offs, and once with a URL for LISTEN that
# does not lead through PgBouncer.
test-contract-pooled: build test-deps $(CONTRACT)/.venv/installed $(PYTHON_CLIENT)/.venv/installed clients/node/node_modules/installed ## Run the contract suite behind PgBouncer, with curl, Python and Node
	for listen in --never --direct; do \
	  $(CONTRACT_POOLED) $$listen $(CONTRACT_PYTHON) $(CONTRACT)/curl/run.py || exit; \
	  (cd $(PYTHON_CLIENT) && $(CONTRACT_POOLED) $$listen .venv/bin/python -m pytest -q tests/contract) || exit; \
	done
	cd clients/node && npm test && \
	  $(CONTRACT_POOLED) --never npm run contract && $(CONTRACT_POOLED) --direct npm run contract

$(CONTRACT)/.venv/installed: $(CONTRACT)/curl/requirements.txt
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv $(CONTRACT)/.venv
	$(CONTRACT_PYTHON) -m pip install -q --disable-pip-version-check -r $<
	@touch $@

# psql and the server come with test-deps.
test-examples: build test-deps examples/node/node_modules $(PYTHON_CLIENT)/.venv/installed ## Run the programs of examples/ against a real sidecar
	@missing=""; for program in ruby:ruby php:php-cli; do \
	  command -v "$${program%:*}" >/dev/null || missing="$$missing $${program#*:}"; done; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"
	examples/run.py

# npm installs the client of this repository, as a link.
examples/node/node_modules: examples/node/package.json $(wildcard clients/node/src/*) clients/node/node_modules/installed | $(AFTER)
	cd clients/node && npm run --silent build
	cd examples/node && npm install --no-audit --no-fund --no-package-lock --silent
	@touch $@

# In a Go module of its own, because its dependencies are not those of the sidecar. As root, because it mounts
# folders and changes users.
test-image: test-deps ## Build the image without a registry, and run a pod of it as processes (as root; installs buildah)
	@missing=""; command -v buildah >/dev/null || missing="buildah"; \
	ldd "$$(command -v busybox)" 2>&1 | grep -q 'not a dynamic' || missing="$$missing busybox-static"; \
	[ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$$missing ca-certificates"; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"
	cd test/image && $(AS_RELEASED) go test -count=1 -vet=off -v ./...

# In a Go module of its own, because the sidecar does not depend on the driver of the browser.
test-console: build ## Use the console in a real browser, with real locks (installs chromium)
	@command -v chromium >/dev/null || $(MAKE) apt PACKAGES="chromium fonts-dejavu-core"
	cd test/console && $(AS_RELEASED) go test -count=1 -vet=off -v ./... -binary $(CURDIR)/$(BINARY)

console-pictures: build ## Make the pictures of docs/console.md again (installs chromium)
	@command -v chromium >/dev/null || $(MAKE) apt PACKAGES="chromium fonts-dejavu-core"
	cd test/console && $(AS_RELEASED) go test -count=1 -vet=off -v -run '^TestPictures$$' ./... -binary $(CURDIR)/$(BINARY) -pictures $(CURDIR)/docs/pictures

# In a Go module of its own, as test-image. As root, because the database's disk is a mount. Two packages
# run at a time: they wait most of the time, and share nothing.
test-campaign: campaign-deps ## Cause each kind of fault once, and test failovers, upgrades and the campaign's own parts (as root; 2.5 minutes)
	cd test/campaign && $(AS_RELEASED) go test -count=1 -p 2 -vet=off -timeout 15m -v -skip '^(TestSoak|TestOverload|TestClients)$$' ./...

# A long campaign consists of rounds, each with the next seed. If a round fails, it prints the command that
# repeats it. LENGTH=0 is one short round.
SEED   ?= 1
LENGTH ?= 10m
FAULTS ?=
POOLED ?= false
STORE  ?= postgres

campaign: campaign-deps ## Run a long fault campaign: make campaign STORE=mysql SEED=1 LENGTH=1h FAULTS=cut,failover (STORE is postgres, etcd, mysql, redis or redis-cluster; without: postgres; without FAULTS: all; POOLED=true: behind PgBouncer; as root)
	cd test/campaign && $(AS_RELEASED) go test -count=1 -timeout 0 -v -run '^TestCampaign$$' . -store $(STORE) -seed $(SEED) -length $(LENGTH) -faults '$(FAULTS)' -pooled=$(POOLED)

# Programs on the clients for Python and Node. Those on the client for the JVM run each night, because Maven takes longer than
# the rest.
test-campaign-clients: campaign-deps clients-built ## Let programs on the clients run while all around them fails, and cause each kind of fault once (as root; 45 s)
	cd test/campaign && $(AS_RELEASED) go test -count=1 -vet=off -timeout 5m -v -run '^TestClients$$' ./clients

PROGRAMS ?= py-threads,py-asyncio,py-gevent,py-processes,node,java
FORMS    ?=

campaign-clients: campaign-deps clients-built java-deps ## A long campaign of the clients: make campaign-clients SEED=1 LENGTH=1h STORE=redis PROGRAMS=py-asyncio,java FAULTS=freeze-sidecar FORMS=many (FORMS are the ways to get locks; without: all; as root)
	cd $(JAVA_CLIENT) && mvn -q -B -ntp -pl client compile dependency:build-classpath -Dmdep.outputFile=target/classpath
	cd test/campaign && $(AS_RELEASED) go test -count=1 -timeout 0 -v -run '^TestClients$$' ./clients -store $(STORE) -seed $(SEED) -length $(LENGTH) -programs '$(PROGRAMS)' -faults '$(FAULTS)' -forms '$(FORMS)'

CLIENT_PROGRAMS := test/campaign/clients

clients-built: $(PYTHON_CLIENT)/.venv/installed clients/node/node_modules/installed
	$(PYTHON_CLIENT)/.venv/bin/ruff check -q $(CLIENT_PROGRAMS)/python
	$(PYTHON_CLIENT)/.venv/bin/ruff format -q --check $(CLIENT_PROGRAMS)/python
	cd clients/node && npx biome ci --config-path=. ../../$(CLIENT_PROGRAMS)/node && npm run --silent build

# The soak test finds what grows in a long time, the overload test what one app can do to others. Both run
# the binary that is released.
soak: LENGTH = 30m
soak: build test-deps ## Let clients come and go for half an hour and look for what grows: make soak LENGTH=30m
	cd test/campaign && $(AS_RELEASED) go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./soak -binary $(CURDIR)/$(BINARY) -length $(LENGTH) -results RESULTS.md

overload: build test-deps ## Let an app want more than its sidecar gives, and measure the others (4 minutes; ulimit -n of 16000)
	cd test/campaign && $(AS_RELEASED) go test -count=1 -timeout 15m -v -run '^TestOverload$$' ./overload -binary $(CURDIR)/$(BINARY) -results RESULTS.md

# From the last release (its tag is in test/campaign/upgrade/PREVIOUS) to this tree, and back.
upgrade: test-deps ## Under load, replace sidecars of the last release by those of this tree, and back: make upgrade LENGTH=10m
	cd test/campaign && $(AS_RELEASED) go test -count=1 -timeout 0 -v ./upgrade -length $(LENGTH)

# All but the image is built twice, to see that both builds are the same.
release-dry: $(SBOM) $(HELM) $(PYTHON_CLIENT)/.venv/installed clients/node/node_modules/installed java-deps ## Build what a release publishes into dist/, and install and run each package (no network; the image as root, with buildah)
	SBOM=$(CURDIR)/$(SBOM) HELM=$(CURDIR)/$(HELM) release/dry.sh $(or $(RELEASE),$$(release/version.py))

# A tag is refused if a file names another version, or if the changelog does not have it.
release-check: ## Check that a tag may be released: make release-check VERSION=v1.2.3
	@version=$$(release/version.py) && { [ "$$version" = "$(VERSION)" ] || { echo "the tag is $(VERSION), and the files have $$version: release/version.py $(VERSION) writes it" >&2; exit 1; }; }
	@release/notes.sh $(VERSION)

# The clone must have the tag.
SCHEMA := store/postgres/schema
CODE   := store/postgres/code

released: ## After a release: freeze its migrations, and test upgrades from it: make released VERSION=v1.2.3
	@git rev-parse --verify --quiet 'refs/tags/$(VERSION)' >/dev/null || { echo "there is no tag $(VERSION)" >&2; exit 1; }
	@{ echo '# The migrations of $(VERSION): files of the schema never change again, the code only with another one. Written by make released.'; \
	for file in $$(git ls-tree --name-only $(VERSION) $(SCHEMA)/ | grep 'sql$$'); do \
	  echo "$$(git show "$(VERSION):$$file" | sha256sum | cut -d ' ' -f 1)  $${file##*/}"; \
	done; \
	echo "$$(for file in $$(git ls-tree --name-only $(VERSION) $(CODE)/ | grep 'sql$$'); do git show "$(VERSION):$$file"; done | sha256sum | cut -d ' ' -f 1)  code"; \
	} > $(SCHEMA)/released.sha256
	@echo $(VERSION) > test/campaign/upgrade/PREVIOUS
	@echo "now run go test -run Released ./store/postgres and make upgrade, and commit"

FAILOVERS ?= 50

failover: campaign-deps ## Kill and stop a primary under load and promote its standby: make failover FAILOVERS=50 (11 seconds each)
	cd test/campaign && $(AS_RELEASED) go test -count=1 -timeout 0 -v -run '^TestFailover$$' ./failover -failovers $(FAILOVERS)

campaign-deps: test-deps
	@[ "$$(uname)-$$(id -u)" = Linux-0 ] || { echo "the fault campaign runs on Linux, as root: it mounts a disk that can be full. Try: sudo make $(MAKECMDGOALS)" >&2; exit 1; }

# Installs PACKAGES as root, or says what to do.
.PHONY: apt
apt:
	@command -v apt-get >/dev/null || { echo "install $(PACKAGES) with this system's package manager" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then as=""; elif command -v sudo >/dev/null; then as=sudo; \
	else echo "as root: apt-get install $(PACKAGES)" >&2; exit 1; fi; \
	echo "installing $(PACKAGES)"; \
	$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES)

# Without debug information, the API server needs less time and memory to compile and link. Without vet,
# which would look at all of Kubernetes. Without -trimpath, because Kubernetes' test server looks for its
# own sources.
K8S_GCFLAGS := -gcflags='k8s.io/...=-dwarf=false'
K8S_FLAGS   := -ldflags='-s -w' $(K8S_GCFLAGS)

test-k8s: build $(HELM) ## Test the Kubernetes manifests, the chart and the injection on a real API server (compiles 10 minutes the first time)
	cd test/k8s && HELM=$(CURDIR)/$(HELM) CGO_ENABLED=0 go test -count=1 -vet=off $(K8S_FLAGS) ./...

KUBE_VERSION := 1.36.3
KUBE         := .bin/kube-$(KUBE_VERSION)

# All programs of Kubernetes in one file. It is compiled again only if its sources or its version change.
$(KUBE): test/node/go.mod test/node/kube/main.go
	@mkdir -p .bin
	cd test/node && CGO_ENABLED=0 go build -o ../../$(KUBE) $(K8S_GCFLAGS) \
	  -ldflags='-s -w -X k8s.io/component-base/version.gitVersion=v$(KUBE_VERSION)' ./kube

test-node-real: build test-deps $(KUBE) $(HELM) ## Run the manifests in containers on a real Kubernetes of one node (as root; compiles Kubernetes and Helm the first time, then takes 3 minutes; installs containerd and etcd)
	@missing=""; for program in containerd:containerd runc:runc etcd:etcd-server openssl:openssl ip:iproute2; do \
	  command -v "$${program%:*}" >/dev/null || missing="$$missing $${program#*:}"; done; \
	[ -x /usr/lib/cni/ptp ] || missing="$$missing containernetworking-plugins"; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"
	cd test/node && KUBE=$(CURDIR)/$(KUBE) HELM=$(CURDIR)/$(HELM) go test -count=1 -vet=off -timeout 20m -v .

nightly: FUZZ_SECONDS = 300
nightly: vuln fuzz-api test-clients test-e2e test-stores test-mysql test-valkey test-contrib test-java test-combinations test-console test-k8s test-node-real site release-dry mutants ## What runs each night: known vulnerabilities, the API's fuzzer, the clients, the end-to-end tests and the suite on all stores, on MySQL itself and on Valkey, frameworks, the client for the JVM, the suite in all combinations, the console in a browser, Kubernetes, a real node, the documentation site, a release, broken rules

vet:
	$(AS_RELEASED) go vet ./...

# The sidecar must also compile for macOS. Nobody runs the result here, so it is not optimized.
vet-darwin:
	GOOS=darwin go vet -gcflags='all=-N -l -dwarf=false' ./...

check: lint vuln vet-darwin test test-image test-campaign test-campaign-clients test-k8s ## Lint, look for known vulnerabilities (asks vuln.go.dev), and run all tests

lint: $(LINT) lint-workflows ## Run the linters and look at the formatting (installs the pinned linter in .bin once)
	$(LINT) fmt --diff
	$(AS_RELEASED) $(LINT) run
	cd bench/peers && $(AS_RELEASED) ../../$(LINT) run
	cd test/campaign && $(AS_RELEASED) ../../$(LINT) run
	cd test/console && $(AS_RELEASED) ../../$(LINT) run

lint-workflows: $(ACTIONLINT) ## Check the forge's workflows
	$(ACTIONLINT) -shellcheck= -pyflakes=

# go install compiles it outside of our module, so its dependencies do not become ours.
$(LINT):
	@mkdir -p .bin
	GOBIN="$(CURDIR)/.bin" $(AS_RELEASED) go install -ldflags='-s -w' -gcflags='github.com/...=-dwarf=false' github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION)
	@mv .bin/golangci-lint $(LINT)

# The database of vulnerabilities is on the internet. If it cannot be reached, the target fails, because nothing
# was checked.
vuln: ## Look for known vulnerabilities in what the code of all modules calls (asks vuln.go.dev; installs the pinned govulncheck in .bin once)
	@if why=$$(curl -sSfL --max-time 20 -o /dev/null $(VULN_DB)/index/db.json 2>&1); then $(MAKE) --no-print-directory vuln-all; \
	else echo "vulnerabilities: not checked: $(VULN_DB): $$why" >&2; exit 1; fi

# First it must find a vulnerability that is there on purpose. Otherwise, a scanner that is broken would look
# like code without vulnerabilities. test/k8s is left out: it is all of Kubernetes, and only tests start it.
vuln-all: $(VULN)
	@cd test/vuln/planted && { ../../../$(VULN) -db file://$(CURDIR)/test/vuln/planted/db ./... >/dev/null 2>&1; [ $$? = 3 ]; } || \
	  { echo "govulncheck does not find the vulnerability of test/vuln/planted" >&2; exit 1; }
	@for module in . bench/peers test/campaign test/console test/image; do \
	  echo "vulnerabilities: $$module"; (cd $$module && $(CURDIR)/$(VULN) -db $(VULN_DB) -test ./...) || exit; done
	@echo "vulnerabilities: not checked: test/k8s, an API server that only tests start"

$(VULN):
	@mkdir -p .bin
	GOBIN="$(CURDIR)/.bin" go install golang.org/x/vuln/cmd/govulncheck@v$(VULN_VERSION)
	@mv .bin/govulncheck $(VULN)

$(ACTIONLINT): PACKAGE = github.com/rhysd/actionlint/cmd/actionlint
$(SBOM): PACKAGE = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
$(HELM): PACKAGE = helm.sh/helm/v4/cmd/helm
$(ACTIONLINT) $(SBOM) $(HELM):
	@mkdir -p .bin
	GOBIN="$(CURDIR)/.bin" $(AS_RELEASED) go install -ldflags='-s -w' -gcflags='k8s.io/...=-dwarf=false' $(PACKAGE)@v$(lastword $(subst -, ,$@))
	@mv .bin/$(notdir $(PACKAGE)) $@

# Compiles ahead what `make check` needs after `make test`, and runs no test. It is for a machine that waits for
# something else meanwhile. All downloads come first, because a download that is halted may not go on. Nothing
# is linked, because Go does not keep linked tests.
COMPILE := go list -export -f '{{""}}'

ahead:
	for module in bench/peers test/campaign test/image; do \
	  (cd $$module && go list -deps -test -f '{{""}}' ./...) || exit; done
	$(MAKE) $(LINT)
	cd test/image && $(AS_RELEASED) $(COMPILE) -test ./...
	for arch in amd64 arm64; do GOARCH=$$arch $(AS_RELEASED) $(COMPILE) ./cmd/locksidecar || exit; done
	cd test/campaign && $(AS_RELEASED) $(COMPILE) -test ./...
	$(MAKE) vet-darwin lint

fmt: $(LINT) ## Format all Go files
	$(LINT) fmt

# It begins with the inputs under testdata/fuzz, and with those that it has found on this machine.
fuzz: ## Run every fuzz target for a short time (FUZZTIME=10s each)
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
	  done; \
	done

FUZZ_API     := test/fuzzapi
FUZZ_SECONDS ?= 60
FUZZ_SEED    ?=

fuzz-api: build test-deps $(FUZZ_API)/.venv/installed ## Send calls of all kinds, and compare the answers with the OpenAPI document (FUZZ_SECONDS=60 on each store; FUZZ_SEED repeats a failure)
	$(FUZZ_API)/.venv/bin/python $(FUZZ_API)/run.py --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

$(FUZZ_API)/.venv/installed: $(FUZZ_API)/requirements.txt
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv $(FUZZ_API)/.venv
	$(FUZZ_API)/.venv/bin/python -m pip install -q --disable-pip-version-check -r $<
	@touch $@

site: site/.venv/installed ## Build the documentation site in dist/site; a broken link is an error
	cd site && NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

site/.venv/installed: site/requirements.txt
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv site/.venv
	site/.venv/bin/python -m pip install -q --disable-pip-version-check -r $<
	@touch $@

# To change the version, change it here and in docs/dependencies.md, and write the new checksums into internal/console/vendored.sha256.
HTMX := 4.0.1

console-static: ## Download the console's JavaScript from npm again, and compare its checksums
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && (cd "$$dir" && npm pack --silent htmx.org@$(HTMX) && tar xzf htmx.org-$(HTMX).tgz) && \
	  cp "$$dir"/package/dist/htmx.min.js "$$dir"/package/dist/ext/hx-sse.min.js internal/console/static/
	cd internal/console/static && sha256sum -c ../vendored.sha256

fuzz-keep: ## Copy the inputs that fuzzing has found to testdata/fuzz, if they reach new code
	go run ./internal/testing/fuzzkeep

model: ## Search the model of the protocol further than the tests do (minutes, and gigabytes)
	MODEL=long go test -count=1 -v -timeout 2h ./test/model

# Some of them: make mutants ONLY=reap-early,no-history
mutants: test-deps ## Break one rule after the other, check that a test fails each time, and write test/mutants/TABLE.md (takes long: each is compiled)
	go run ./test/mutants $(if $(ONLY),-only '$(ONLY)')

bench: bench-deps ## Measure the goals of docs/benchmarks.md and write bench/RESULTS.md
	go run ./bench -write $(BENCH_ARGS)

bench-check: bench-deps ## Measure again, and fail where a ratio is worse than in bench/results.json by more than 25%
	go run ./bench -check $(BENCH_ARGS)

bench-growth: test-deps ## Measure how cost grows and write bench/GROWTH.md with its pictures
	go run ./bench -growth -write $(BENCH_ARGS)

bench-profile: test-deps ## Profile the sidecar under the goals' loads and write bench/PROFILE.md
	go run ./bench -profile -write $(BENCH_ARGS)

bench-sweep: test-deps ## Use new keys for 20 minutes, check that the table of locks stops growing, and write bench/SWEEP.md
	go run ./bench -sweep -write $(BENCH_ARGS)

bench-explain: test-deps ## Measure what each statement costs PostgreSQL, and write bench/EXPLAIN.md
	go run ./bench/explain -write $(BENCH_ARGS)

# The bench compares with Redis and etcd, and starts its own servers. With RUNLEVEL=1 the packages do not
# start theirs. If systemd has started them nevertheless, they are stopped.
bench-deps: test-deps
	@missing=""; \
	command -v redis-server >/dev/null || missing="redis-server"; \
	[ -n "$$missing" ] || exit 0; \
	RUNLEVEL=1 $(MAKE) apt PACKAGES="$$missing" || exit; \
	[ -d /run/systemd/system ] || exit 0; \
	$$([ "$$(id -u)" = 0 ] || echo sudo) systemctl disable -q --now redis-server

bench-go: ## Run the Go benchmarks (BENCH=regexp chooses)
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

clean: ## Remove what was built
	rm -rf bin .bin dist
