// Package telemetry decides where spans and figures go: it makes the providers of
// OpenTelemetry from the standard OTEL_ variables.
package telemetry

import (
	_ "github.com/exaring/otelpgx"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "go.opentelemetry.io/contrib/exporters/autoexport"
	_ "go.opentelemetry.io/otel/exporters/prometheus"
	_ "go.opentelemetry.io/otel/sdk/metric"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	_ "golang.org/x/term"
	_ "golang.org/x/time/rate"
)
