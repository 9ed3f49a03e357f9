// Package api holds the OpenAPI document of the sidecar's HTTP API.
package api

import _ "embed"

// Document is the OpenAPI 3.1 document, in YAML.
//
//go:embed openapi.yaml
var Document []byte
