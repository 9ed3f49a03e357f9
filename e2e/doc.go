// Package e2e tests the built binary. Its tests start sidecars as separate processes, talk to them
// over their sockets like an app, and count the statements in PostgreSQL. Every answer is checked
// against api/openapi.yaml.
package e2e
