# `make run` and `make test` install what they need; `make check` is what must pass before anything is merged. What is more than a line or two is a
# script beside what it serves. Options come from the environment or the command: make campaign STORE=etcd LENGTH=1h.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BINARY  := bin/locksidecar
export VERSION

# The version comes from git describe; stamping fails in checkouts of other users.
export GOFLAGS += -buildvcs=false

# The stores that the clients and the examples are tested on: make test-clients STORES=postgres
STORES ?= memory postgres etcd mysql redis
export CONTRACT_STORES = $(STORES)

# All programs and tests are compiled with the flags of a release (test/as-released.sh).
AS_RELEASED := . test/as-released.sh &&

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z0-9-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :)

help: ## List the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null || \
	 grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST)

run: build ## Build and start the sidecar on the embedded store; prints a curl that gets a lock
	@cmd/locksidecar/try.sh

# grpcnotrace: gRPC's own trace pages are templates, which would make the linker keep all methods of all types: 10 MB.
build: ## Build bin/locksidecar, one static file
	CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $(BINARY) ./cmd/locksidecar
	@echo "$(BINARY): $$(wc -c < $(BINARY)) bytes"

image: ## Build the image (IMAGE=name:tag) with docker, buildah or podman; a release needs GO_IMAGE=…@sha256:…
	release/build-image.sh

test: test-unit-clients test-e2e ## Install what the tests need and run all of them

test-go: test-unit test-e2e ## The sidecar alone: unit, store and end-to-end tests (installs databases and Prometheus)

# All parts that wait for each other's packages, once, before parts that run at the same time.
deps client-deps:
	test/deps.sh go python contract node examples ruby php

# The tests of the clients and the examples wait most of the time, and the unit tests compute. So both run at the same time.
test-unit-clients: deps vet
	@$(MAKE) --no-print-directory --jobs=2 test-unit test-clients

test-unit: vet
	test/deps.sh go && test/unit.sh

# They measure times, so nothing else runs at the same time. -count=1, because Go's test cache does not know that they build the binary, with the race
# detector. The tests themselves run without it. One needs the Python client: it follows a trace that begins in an app.
test-e2e: vet
	test/deps.sh go python && $(AS_RELEASED) go test -vet=off -count=1 ./e2e $(if $(E2E_STORES),-stores=$(E2E_STORES)) $(if $(E2E_KEEP),-keep $(E2E_KEEP))

# Two at a time, because they wait most of the time. The examples use the Node client that test-node builds.
test-clients: build deps ## The clients and the examples, against the built sidecar, on all stores (STORES=postgres: on one)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target AFTER=test-node test-python test-node test-go-client test-ruby test-php test-contract test-examples

test-python: build
	test/deps.sh go python && clients/python/test.sh

test-node: build
	test/deps.sh go node && cd clients/node && npm run lint && npm test && npm run contract && CONTRACT_OVER=tcp CONTRACT_STORES=memory npm run contract

test-go-client: build
	test/deps.sh go contract && clients/go/test.sh

test-ruby: build
	test/deps.sh go ruby && clients/ruby/test.sh

test-php: build
	test/deps.sh go php && clients/php/test.sh

test-rust: build ## The client for Rust, on all stores (needs Rust 1.85 or later; compiles for minutes the first time)
	test/deps.sh go contract rust && clients/rust/test.sh

test-contract: build
	test/deps.sh go contract && clients/contract/test.sh

test-examples: build | $(AFTER)
	test/deps.sh go python node examples && examples/run.py

test-java: build ## The client for the JVM with ShedLock and Spring, on all stores (needs JDK 17 or later)
	test/deps.sh go java && clients/java/test.sh

test-contrib: ## The clients' modules for frameworks, with the real frameworks
	clients/test-contrib.sh

test-image: ## Build the image without a registry, and look at it (as root; installs buildah)
	test/image/run.sh

test-k8s: ## The Kubernetes manifests, the chart and the injection on a real API server (compiles 10 minutes the first time)
	test/k8s/run.sh

test-network: ## Cut the network between an app and its sidecar, in network namespaces (as root; 20 s)
	test/deps.sh go network && go test -tags network -count=1 ./test/network

test-campaign: ## Cause each kind of fault once, and test failovers and upgrades (as root; 2.5 minutes)
	test/campaign/run.sh brief

test-campaign-clients: ## Let programs on the clients run while all around them fails (as root; 45 s)
	test/campaign/run.sh brief-clients

campaign: ## A long fault campaign: make campaign STORE=mysql SEED=1 LENGTH=1h (test/campaign/run.sh has all options and its relatives)
	test/campaign/run.sh rounds

campaign-clients: ## A long campaign of the clients: make campaign-clients STORE=redis SEED=1 LENGTH=1h
	test/campaign/run.sh clients

mutants: ## Break one rule after the other, and check that a test fails each time (takes long; ONLY=reap-early,no-history)
	test/deps.sh go python ruby php node java rust && go run ./test/mutants $(if $(ONLY),-only '$(ONLY)')

bench: ## Measure the goals of bench/README.md and write bench/RESULTS.md
	test/deps.sh go && go run ./bench -write $(BENCH_ARGS)

check: lint vuln vet-darwin test test-image test-network test-campaign test-campaign-clients test-k8s ## Lint, look for known vulnerabilities, and run all tests

nightly: ## What runs each night, on one machine: all stores, other servers, frameworks, Kubernetes, a release, broken rules
	test/nightly.sh

vet:
	$(AS_RELEASED) go vet ./...

# The sidecar must also compile for macOS. Nobody runs the result here, so it is not optimized.
vet-darwin:
	GOOS=darwin go vet -gcflags='all=-N -l -dwarf=false' ./...

lint: ## Run the linters, look at the formatting and at the forge's workflows
	test/deps.sh golangci-lint actionlint && test/lint.sh

fmt: ## Format all Go files
	test/deps.sh golangci-lint && .bin/golangci-lint fmt

vuln: ## Look for known vulnerabilities in what the code of all modules calls (asks vuln.go.dev)
	test/vuln/run.sh

# Not part of lint: Vale compiles for two minutes, and a long sentence is for a reader to judge.
prose: ## Look at the sentences of the documents (Vale): long ones are warnings, very long ones and words that we do not use are errors
	test/deps.sh vale && cd site && ../.bin/vale --config vale.ini --output line $(addprefix ../,$(or $(FILES),$(filter-out CHANGELOG.md,$(wildcard *.md)) docs $(wildcard clients/*/README.md) deploy examples))

site: ## Build the documentation site in dist/site; a broken link is an error
	test/deps.sh site && site/.venv/bin/python site/pages.py && site/.venv/bin/zensical build --strict -f dist/mkdocs.yml

release-dry: ## Build what a release publishes into dist/, and install and run each package (the image as root, with buildah)
	test/deps.sh cyclonedx-gomod helm python node java ruby php rust && release/dry.sh

clean: ## Remove what was built
	rm -rf bin .bin dist
