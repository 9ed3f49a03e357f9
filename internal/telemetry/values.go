package telemetry

import (
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// What the SDK reads of whole numbers. With a value that is none it takes its default,
// and a line in the log, or not even that, is all that one hears of it.
var (
	spanNumbers = []string{
		"OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
		"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT",
		"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT",
		"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
	}
	figureTimes = []string{"OTEL_METRIC_EXPORT_INTERVAL", "OTEL_METRIC_EXPORT_TIMEOUT"}
)

const wholeMilliseconds = "whole milliseconds without a unit, such as 10000"

// settings checks how a signal is sent. The exporters read the variables for all signals
// even where the signal has one of its own.
func (e env) settings(s signal) (errs []error) {
	for _, name := range []func(string) string{func(n string) string { return otlpPrefix + n }, s.otlp} {
		errs = append(errs,
			e.oneOf(name("COMPRESSION"), "gzip", "none"),
			e.number(name("TIMEOUT"), 0, wholeMilliseconds),
			e.headers(name("HEADERS")),
			e.file(name("CERTIFICATE")), e.file(name("CLIENT_CERTIFICATE")), e.file(name("CLIENT_KEY")))
		if u := name("ENDPOINT"); e.get(u) != "" {
			if _, err := url.Parse(e.get(u)); err != nil {
				errs = append(errs, e.endpoint(u, false))
			}
		}
	}
	return errs
}

// numbers checks variables for whole numbers of at least so much.
func (e env) numbers(names []string, least int, allowed string) (errs []error) {
	for _, name := range names {
		errs = append(errs, e.number(name, least, allowed))
	}
	return errs
}

func (e env) number(name string, least int, allowed string) error {
	value := e.get(name)
	if strings.TrimSpace(value) == "" {
		return nil
	}
	if n, err := strconv.Atoi(strings.TrimSpace(value)); err != nil || n < least {
		return bad(name, value, allowed)
	}
	return nil
}

// headerName is what the name of a header may be.
var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// headers checks what often has a password. The SDK would write it into the log.
func (e env) headers(name string) error {
	value := strings.TrimSpace(e.get(name))
	if value == "" {
		return nil
	}
	for pair := range strings.SplitSeq(value, ",") {
		key, escaped, found := strings.Cut(pair, "=")
		_, err := url.PathUnescape(escaped)
		if strings.TrimSpace(pair) != "" && (!found || err != nil || !headerName.MatchString(strings.TrimSpace(key))) {
			return bad(name, "…", "name=value,name=value, values percent-encoded, such as authorization=Bearer%20abc (what stands there is not shown)")
		}
	}
	return nil
}

// file checks that a file is there: a collector's certificate that cannot be read is
// not a reason to trust those of the system instead.
func (e env) file(name string) error {
	path := strings.TrimSpace(e.get(name))
	if path == "" {
		return nil
	}
	if _, err := os.ReadFile(path); err != nil { //nolint:gosec // whoever sets the environment names the file
		return bad(name, path, "a file that can be read ("+err.Error()+")")
	}
	return nil
}

// fold is oneOf for what the SDK takes in any case.
func (e env) fold(name string, allowed ...string) error {
	for _, a := range allowed {
		if strings.EqualFold(e.get(name), a) {
			return nil
		}
	}
	return e.oneOf(name, allowed...)
}
