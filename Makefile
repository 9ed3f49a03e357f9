# Two commands do all the set-up: `make run` and `make test`.

VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LINT_VERSION := 2.15.0
LINT         := .bin/golangci-lint-$(LINT_VERSION)
BINARY       := bin/locksidecar
MAX_BINARY   := 25000000
IMAGE        ?= ghcr.io/locksidecar/locksidecar:$(VERSION)
FUZZTIME     ?= 10s
BENCH        ?= .

PYTHON_CLIENT := clients/python

# The version comes from git describe; stamping fails in checkouts of other users.
export GOFLAGS += -buildvcs=false

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
	exec ./$(BINARY)

# grpcnotrace: without gRPC's own trace pages the linker drops 6 MB of templates.
build: ## Build bin/locksidecar, one static file
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BINARY) ./cmd/locksidecar
	@size=$$(wc -c < $(BINARY)); echo "$(BINARY): $$size bytes"; \
	[ "$$size" -le $(MAX_BINARY) ] || { echo "more than $(MAX_BINARY) bytes: it is copied into every pod" >&2; exit 1; }

# A platform and a builder of choice: make image PLATFORM=linux/arm64 BUILDER=podman. The
# same sources make the same image: files have the sources' date. Of the image's own date,
# docker learns by the argument (what buildx dates itself: --output=…,rewrite-timestamp=true),
# the others by a flag. Debian 12's buildah does not know its own platform.
PLATFORM          ?= linux/$(shell go env GOARCH)
BUILDER           ?= $(shell docker info >/dev/null 2>&1 && echo docker || command -v buildah || command -v podman)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

image: ## Build the image (IMAGE=name:tag) with docker, buildah or podman
	@[ -n "$(BUILDER)" ] || { echo "an image is built by docker, buildah or podman: none is installed" >&2; exit 1; }
	$(BUILDER) build --platform $(PLATFORM) -t $(IMAGE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) --build-arg SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
	  $(if $(findstring docker,$(BUILDER)),,--timestamp $(SOURCE_DATE_EPOCH) --build-arg BUILDPLATFORM=linux/$$(go env GOHOSTARCH)) \
	  $(foreach arg,GO_IMAGE GOPROXY GOSUMDB,$(if $($(arg)),--build-arg $(arg)=$($(arg)))) $(BUILD_FLAGS) .

test: test-go test-contract test-python test-node test-examples ## Install what the tests need and run all of them

# The end-to-end tests measure times, so nothing else runs beside them; and the test
# cache does not know that they build the binary, so it is not asked (-count=1). One
# follows a trace from an app with the Python client.
test-go: test-deps vet $(PYTHON_CLIENT)/.venv/installed ## The sidecar alone: unit, store and end-to-end tests (installs PostgreSQL, PgBouncer, Prometheus)
	go test -race $$(go list ./... | grep -v -e /e2e$$ -e /test/model$$)
	go test ./test/model
	go test -race -count=1 ./e2e

# The race detector needs a C compiler; the rest of the build does not. Of Prometheus the
# tests start one of their own, so the package's service is not left running.
test-deps:
	@missing=""; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb /opt/homebrew/opt/postgresql*/bin/initdb \
	  /usr/local/opt/postgresql*/bin/initdb /usr/pgsql-*/bin/initdb 2>/dev/null | grep -q . || missing="postgresql"; \
	command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing="$$missing pgbouncer"; \
	command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v curl >/dev/null || missing="$$missing curl"; \
	command -v openssl >/dev/null || missing="$$missing openssl"; \
	command -v gcc >/dev/null || command -v clang >/dev/null || missing="$$missing gcc libc6-dev"; \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null || { echo "the tests need: $$missing; install them with this system's package manager" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then as=""; elif command -v sudo >/dev/null; then as=sudo; \
	else echo "the tests need: $$missing; as root: apt-get install $$missing" >&2; exit 1; fi; \
	echo "installing $$missing"; \
	$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing || exit; \
	case "$$missing" in *prometheus*) [ ! -d /run/systemd/system ] || $$as systemctl disable -q --now prometheus;; esac

test-node: build test-deps ## Lint and test the Node client, and run the contract suite with it (needs Node 20 or later)
	@node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' && command -v npm >/dev/null || \
	{ echo "the Node client needs Node 20 or later, and npm: see https://nodejs.org/en/download" >&2; exit 1; }
	cd clients/node && npm ci --no-audit --no-fund && npm run lint && npm test && npm run contract

test-python: build test-deps $(PYTHON_CLIENT)/.venv/installed ## Lint and test the Python client, and run the contract suite with it
	cd $(PYTHON_CLIENT) && .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/mypy && .venv/bin/python -m pytest

$(PYTHON_CLIENT)/.venv/installed: $(PYTHON_CLIENT)/requirements-dev.txt $(PYTHON_CLIENT)/pyproject.toml
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv $(PYTHON_CLIENT)/.venv
	cd $(PYTHON_CLIENT) && .venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt && \
	  .venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation -e .
	@touch $@

CONTRACT := clients/contract
CONTRACT_PYTHON := $(CONTRACT)/.venv/bin/python

test-contract: build test-deps $(CONTRACT)/.venv/installed ## Run the clients' contract suite with curl, on both stores
	$(CONTRACT)/.venv/bin/ruff check -q $(CONTRACT)/curl
	$(CONTRACT)/.venv/bin/ruff format -q --check $(CONTRACT)/curl
	cd $(CONTRACT)/curl && ../.venv/bin/python -m unittest -q
	$(CONTRACT_PYTHON) $(CONTRACT)/curl/run.py

$(CONTRACT)/.venv/installed: $(CONTRACT)/curl/requirements.txt
	@python3 -c 'import ensurepip' 2>/dev/null || $(MAKE) apt PACKAGES=python3-venv
	python3 -m venv $(CONTRACT)/.venv
	$(CONTRACT_PYTHON) -m pip install -q --disable-pip-version-check -r $<
	@touch $@

# psql and the server come with test-deps.
test-examples: build test-deps examples/node/node_modules ## Run the programs of examples/ against a real sidecar, on both stores
	@missing=""; for program in ruby:ruby php:php-cli; do \
	  command -v "$${program%:*}" >/dev/null || missing="$$missing $${program#*:}"; done; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"
	examples/run.py

# The client as it is in the repository: npm makes a link to it.
examples/node/node_modules: examples/node/package.json $(wildcard clients/node/src/*)
	@command -v npm >/dev/null || { echo "the Node example needs Node 20 or later, and npm: see https://nodejs.org/en/download" >&2; exit 1; }
	cd clients/node && npm ci --no-audit --no-fund --silent && npm run --silent build
	cd examples/node && npm install --no-audit --no-fund --no-package-lock --silent
	@touch $@

# In a module of its own: what it needs to check the Dockerfile is none of ours. As root,
# for it mounts and changes users.
test-image: test-deps ## Build the image without a registry, and run a pod of it as processes (as root; installs buildah)
	@missing=""; command -v buildah >/dev/null || missing="buildah"; \
	ldd "$$(command -v busybox)" 2>&1 | grep -q 'not a dynamic' || missing="$$missing busybox-static"; \
	[ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$$missing ca-certificates"; \
	[ -z "$$missing" ] || $(MAKE) apt PACKAGES="$$missing"
	cd test/image && CGO_ENABLED=0 go test -count=1 -vet=off -v ./...

# In a module of its own, like test-image, and as root: the database's disk is a mount.
test-campaign: campaign-deps ## Run the short fault campaign with the seeds of CI, and test what it is made of (as root; 4 minutes; installs faketime)
	cd test/campaign && go test -count=1 -p 1 -timeout 15m -v ./...

# A long campaign is one of rounds, each with the next seed. What a round needs to be
# repeated is printed when it fails.
SEED   ?= 1
LENGTH ?= 10m
FAULTS ?=

campaign: campaign-deps ## Run a long fault campaign: make campaign SEED=1 LENGTH=1h FAULTS=cut,disk-full (all without FAULTS; as root)
	cd test/campaign && go test -count=1 -timeout 0 -v -run '^TestCampaign$$' . -seed $(SEED) -length $(LENGTH) -faults '$(FAULTS)'

campaign-deps: test-deps
	@ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || $(MAKE) apt PACKAGES=faketime

# Installs PACKAGES as root, or says what to do.
.PHONY: apt
apt:
	@command -v apt-get >/dev/null || { echo "install $(PACKAGES) with this system's package manager" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then as=""; elif command -v sudo >/dev/null; then as=sudo; \
	else echo "as root: apt-get install $(PACKAGES)" >&2; exit 1; fi; \
	echo "installing $(PACKAGES)"; \
	$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES)

# Without debug information the binary with the API server links in less time and memory.
# Without vet, which would look at all of Kubernetes.
test-k8s: build ## Test the Kubernetes manifests and the injection on a real API server (compiles 5 minutes the first time)
	cd test/k8s && go test -count=1 -vet=off -ldflags='-s -w' ./...

vet:
	go vet ./...

vet-darwin: # it builds for macOS too
	GOOS=darwin go vet ./...

check: lint vet-darwin test test-image test-k8s ## What CI runs: lint and test

lint: $(LINT) ## Run the linters and look at the formatting (installs the pinned linter in .bin once)
	$(LINT) fmt --diff
	$(LINT) run
	cd bench/peers && ../../$(LINT) run
	cd test/campaign && ../../$(LINT) run

# Built from source in a module of its own: what the linter needs is none of ours.
$(LINT):
	@mkdir -p .bin
	GOBIN="$(CURDIR)/.bin" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION)
	@mv .bin/golangci-lint $(LINT)

# Compiles what takes long, and runs none of it: for who has something else to wait for.
ahead: $(LINT)
	cd test/k8s && go test -exec true -vet=off -ldflags='-s -w' ./...
	cd test/image && CGO_ENABLED=0 go test -exec true -vet=off ./...
	GOOS=darwin go vet ./...

fmt: $(LINT) ## Format all Go files
	$(LINT) fmt

# It begins with the inputs under testdata/fuzz, and with what it found on this machine before.
fuzz: ## Run every fuzz target for a short time (FUZZTIME=10s each)
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
	  for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" || exit 1; \
	  done; \
	done

fuzz-keep: ## Keep what fuzzing has found interesting, if it reaches new code, under testdata/fuzz
	go run ./internal/fuzzkeep

model: ## Search the model of the protocol further than the tests do (minutes, and gigabytes)
	MODEL=long go test -count=1 -v -timeout 2h ./test/model

bench: bench-deps ## Measure the goals of docs/benchmarks.md and write bench/RESULTS.md
	go run ./bench -write $(BENCH_ARGS)

bench-check: bench-deps ## Measure again, and fail where a ratio is worse than in bench/results.json by more than 25%
	go run ./bench -check $(BENCH_ARGS)

bench-growth: test-deps ## Measure how cost grows and write bench/GROWTH.md with its pictures
	go run ./bench -growth -write $(BENCH_ARGS)

bench-profile: test-deps ## Profile the sidecar under the goals' loads and write bench/PROFILE.md
	go run ./bench -profile -write $(BENCH_ARGS)

bench-explain: test-deps ## Measure what each statement costs PostgreSQL, and write bench/EXPLAIN.md
	go run ./bench/explain -write $(BENCH_ARGS)

# Redis and etcd are peers. The bench starts its own: RUNLEVEL=1 keeps the packages
# from starting theirs, and what systemd has started is ended.
bench-deps: test-deps
	@missing=""; \
	command -v redis-server >/dev/null || missing="redis-server"; \
	command -v etcd >/dev/null || missing="$$missing etcd-server"; \
	[ -n "$$missing" ] || exit 0; \
	RUNLEVEL=1 $(MAKE) apt PACKAGES="$$missing" || exit; \
	[ -d /run/systemd/system ] || exit 0; \
	as=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	case "$$missing" in *redis*) $$as systemctl disable -q --now redis-server;; esac; \
	case "$$missing" in *etcd*) $$as systemctl disable -q --now etcd;; esac

bench-go: ## Run the Go benchmarks (BENCH=regexp chooses)
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

clean: ## Remove what was built
	rm -rf bin .bin
