#!/usr/bin/env bash
# Looks at and tests the client for Rust against the built sidecar, and runs the contract suite through it on the stores of CONTRACT_STORES: `make test-rust`.
set -euo pipefail
cd "$(dirname "$0")"
export LOCKSIDECAR_BINARY=$PWD/../../bin/locksidecar CARGO_TERM_QUIET=true
cargo fmt --check
cargo clippy --locked --all-targets --all-features -- -D warnings
cargo clippy --locked -- -D warnings # without features
RUSTDOCFLAGS='-D warnings' cargo doc --locked --all-features --no-deps
cargo test --locked --all-features
CONTRACT_OVER=tcp CONTRACT_STORES=memory cargo test --locked --all-features --test contract
