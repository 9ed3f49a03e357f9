package telemetry

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// number is a variable that is a whole number.
type number struct {
	name     string
	from, to int
}

const (
	// day is the longest time that a variable may name, in milliseconds.
	day = 24 * 60 * 60 * 1000
	// many is the most of what the SDK makes room for at once: it panics at queues that
	// cannot be made.
	many = 1_000_000
	// unlimited is how the SDK is told that something has no limit.
	unlimited = -1
)

// What the SDK reads of whole numbers. With a value that is none it takes its default,
// and a line in the log, or not even that, is all that one hears of it; without a delay it
// runs in a circle without a rest.
var (
	spanNumbers = []number{
		{"OTEL_BSP_SCHEDULE_DELAY", 1, day},
		{"OTEL_BSP_EXPORT_TIMEOUT", 0, day},
		{"OTEL_BSP_MAX_QUEUE_SIZE", 1, many},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, many},
		{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", unlimited, many},
		{"OTEL_ATTRIBUTE_COUNT_LIMIT", unlimited, many},
		{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", unlimited, many},
		{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", unlimited, many},
		{"OTEL_SPAN_EVENT_COUNT_LIMIT", unlimited, many},
		{"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", unlimited, many},
		{"OTEL_SPAN_LINK_COUNT_LIMIT", unlimited, many},
		{"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", unlimited, many},
	}
	figureTimes = []number{{"OTEL_METRIC_EXPORT_INTERVAL", 1, day}, {"OTEL_METRIC_EXPORT_TIMEOUT", 1, day}}
)

// settings checks how a signal is sent. The exporters read the variables for all signals
// even where the signal has one of its own.
func (e env) settings(s signal) (errs []error) {
	for _, name := range []func(string) string{func(n string) string { return otlpPrefix + n }, s.otlp} {
		errs = append(errs,
			e.oneOf(name("COMPRESSION"), "gzip", "none"),
			e.number(number{name("TIMEOUT"), 0, day}),
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

func (e env) numbers(all []number) (errs []error) {
	for _, n := range all {
		errs = append(errs, e.number(n))
	}
	return errs
}

func (e env) number(n number) error {
	value := strings.TrimSpace(e.get(n.name))
	if value == "" {
		return nil
	}
	if got, err := strconv.Atoi(value); err != nil || got < n.from || got > n.to {
		allowed := fmt.Sprintf("a whole number from %d to %d", n.from, n.to)
		if n.to == day {
			allowed += ": milliseconds, without a unit"
		}
		return bad(n.name, value, allowed)
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
