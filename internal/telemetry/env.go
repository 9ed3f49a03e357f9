package telemetry

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// env reads the standard variables. One that is set but empty counts as unset, as the
// standard says.
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
	traces  signal = "TRACES"
	figures signal = "METRICS"
)

// exporter is OTEL_TRACES_EXPORTER and so on, otlp OTEL_EXPORTER_OTLP_TRACES_ and so on.
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

// check refuses what the SDK would refuse without naming it, or would replace by its
// default with no more than a line in the log. Only what would be used is judged: others
// may have set the rest, for all containers of a cluster.
func (e env) check() error {
	var errs []error
	if e.on(traces) {
		errs = append(errs,
			e.oneOf(traces.exporter(), "otlp", "console", "none"),
			e.sampler(),
			e.oneOf("OTEL_METRICS_EXEMPLAR_FILTER", "trace_based", "always_on", "always_off"))
		errs = append(errs, e.exporter(traces)...)
		errs = append(errs, e.numbers(spanNumbers)...)
	}
	if e.on(figures) {
		errs = append(errs, e.oneOf(figures.exporter(), "otlp", "prometheus", "console", "none"))
		errs = append(errs, e.exporter(figures)...)
		errs = append(errs, e.numbers(figureTimes)...)
	}
	if e.on(traces) || e.on(figures) {
		errs = append(errs, e.fold("OTEL_SDK_DISABLED", "true", "false"))
	}
	return distinct(errs)
}

// distinct joins errors, those that both signals share once.
func distinct(errs []error) error {
	var seen []string
	var kept []error
	for _, err := range errs {
		several := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			several = joined.Unwrap()
		}
		for _, err := range several {
			if err != nil && !slices.Contains(seen, err.Error()) {
				seen = append(seen, err.Error())
				kept = append(kept, err)
			}
		}
	}
	return errors.Join(kept...)
}

// exporter checks where and how a signal is sent. What is set for the signal alone wins.
func (e env) exporter(s signal) []error {
	if exporter := e.get(s.exporter()); exporter != "" && exporter != "otlp" {
		return nil
	}
	protocol, endpoint := s.otlp("PROTOCOL"), s.otlp("ENDPOINT")
	if e.get(protocol) == "" {
		protocol = otlpPrefix + "PROTOCOL"
	}
	if e.get(endpoint) == "" {
		endpoint = otlpPrefix + "ENDPOINT"
	}
	if err := e.oneOf(protocol, "grpc", "http/protobuf"); err != nil {
		return []error{err}
	}
	return append(e.settings(s), e.endpoint(endpoint, e.get(protocol) == "grpc"))
}

func (e env) endpoint(name string, grpc bool) error {
	value := e.get(name)
	if value == "" {
		return nil
	}
	u, err := url.Parse(value)
	if err == nil && grpc {
		return nil // host:port, dns:///host:4317, unix:///run/otel.sock, and what else gRPC knows
	}
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return bad(name, redact(value), "a URL with http or https, such as http://collector:4318 (4317 for grpc)")
	}
	return nil
}

// redact hides what may be a password, or a token.
func redact(value string) string {
	if at := strings.LastIndex(value, "@"); at >= 0 {
		value = "…" + value[at:]
	}
	if query := strings.IndexAny(value, "?#"); query >= 0 {
		value = value[:query+1] + "…"
	}
	return value
}

func (e env) sampler() error {
	const name, arg = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	// The SDK takes them in any case, with spaces around.
	value := strings.ToLower(strings.TrimSpace(e.get(name)))
	known := []string{
		"always_on", "always_off", "traceidratio",
		"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
	}
	if value != "" && !slices.Contains(known, value) {
		return bad(name, e.get(name), strings.Join(known, ", "))
	}
	ratio := strings.TrimSpace(e.get(arg))
	if !strings.HasSuffix(value, "traceidratio") || ratio == "" {
		return nil
	}
	if f, err := strconv.ParseFloat(ratio, 64); err != nil || !(f >= 0 && f <= 1) {
		return bad(arg, e.get(arg), "a number from 0 to 1, such as 0.1 for a tenth of the traces")
	}
	return nil
}

// w3c says whether the propagators are among those that we have.
func (env) w3c(propagators string) bool {
	for name := range strings.SplitSeq(propagators, ",") {
		if strings.TrimSpace(name) == "tracecontext" {
			return true
		}
	}
	return false
}

func (e env) oneOf(name string, allowed ...string) error {
	if value := e.get(name); value != "" && !slices.Contains(allowed, value) {
		return bad(name, value, strings.Join(allowed, ", "))
	}
	return nil
}

func bad(name, value, allowed string) error {
	return fmt.Errorf("%s is %q; allowed: %s", name, value, allowed)
}
