package telemetry

import (
	"slices"
	"strings"
)

// env reads the standard variables that turn signals on. By the standard, an empty one is unset.
type env struct {
	lookup func(name string) (string, bool)
}

func (e env) get(name string) string {
	value, _ := e.lookup(name)
	return value
}

type signal string

const (
	traces        signal = "TRACES"
	metricsSignal signal = "METRICS"
)

// exporter is OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER. otlp is for instance
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.
func (s signal) exporter() string        { return "OTEL_" + string(s) + "_EXPORTER" }
func (s signal) otlp(name string) string { return otlpPrefix + string(s) + "_" + name }

const otlpPrefix = "OTEL_EXPORTER_OTLP_"

func (e env) on(s signal) bool {
	if strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if exporter := e.get(s.exporter()); exporter != "" {
		return exporter != "none"
	}
	return e.get(otlpPrefix+"ENDPOINT") != "" || e.get(s.otlp("ENDPOINT")) != ""
}

func (e env) lists(variable, name string) bool {
	return slices.ContainsFunc(strings.Split(e.get(variable), ","), func(one string) bool { return strings.TrimSpace(one) == name })
}
