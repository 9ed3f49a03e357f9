package telemetry

import (
	"slices"
	"strings"
)

// env reads the standard variables that decide what is turned on. One that is set but
// empty counts as unset, as the standard says.
type env struct {
	lookup func(name string) (string, bool)
}

func (e env) get(name string) string {
	value, _ := e.lookup(name)
	return value
}

// signal is a part of the names of variables.
type signal string

const (
	traces        signal = "TRACES"
	metricsSignal signal = "METRICS"
)

// exporter is OTEL_TRACES_EXPORTER and so on, otlp OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and so on.
func (s signal) exporter() string        { return "OTEL_" + string(s) + "_EXPORTER" }
func (s signal) otlp(name string) string { return otlpPrefix + string(s) + "_" + name }

const otlpPrefix = "OTEL_EXPORTER_OTLP_"

// on says whether a signal is to be sent.
func (e env) on(s signal) bool {
	if strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	if exporter := e.get(s.exporter()); exporter != "" {
		return exporter != "none"
	}
	return e.get(otlpPrefix+"ENDPOINT") != "" || e.get(s.otlp("ENDPOINT")) != ""
}

// protocol is the one that a signal is sent with; empty: the SDK's default.
func (e env) protocol(s signal) string {
	if own := e.get(s.otlp("PROTOCOL")); own != "" {
		return own
	}
	return e.get(otlpPrefix + "PROTOCOL")
}

// lists says whether name is one of several, separated by commas.
func (e env) lists(variable, name string) bool {
	return slices.ContainsFunc(strings.Split(e.get(variable), ","), func(one string) bool { return strings.TrimSpace(one) == name })
}
