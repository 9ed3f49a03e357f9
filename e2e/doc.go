// Package e2e tests the built binary: its tests start sidecars as separate
// processes, talk to them over their sockets as an app would, and let PostgreSQL
// itself count the statements. Every answer is held against api/openapi.yaml.
package e2e
