package telemetry

import (
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	"golang.org/x/time/rate"
)

// An unreachable collector fails each batch. A few errors are logged at once, then one in each pause.
const (
	errorBurst = 3
	errorPause = 10 * time.Second
	// maxError limits the logged part of an error, which contains the collector's answer.
	maxError = 1 << 10
)

func report(log *slog.Logger) {
	limit, silent := rate.NewLimiter(rate.Every(errorPause), errorBurst), atomic.Int64{}
	handleErrors(func(err error) {
		if errors.Is(err, resource.ErrPartialResource) {
			return // logged at the start, and unrelated to delivery
		}
		if !limit.Allow() {
			silent.Add(1)
			return
		}
		text := hide(err.Error())
		log.Warn("telemetry has a problem; locks are not affected", "error", text[:min(len(text), maxError)], "errors_left_out", silent.Swap(0))
	})
	otel.SetLogger(logr.New(theirLog{log}))
}

// userinfo and query are the parts of a URL that may contain a password, or a token.
var userinfo, query = regexp.MustCompile(`//[^@\s]*@`), regexp.MustCompile(`\?[^\s"]+`)

func hide(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "//…@"), "?…")
}

// shown are attributes of OpenTelemetry's errors that are never secret. Others may contain a part of a header,
// or of a URL with a password.
var shown = []string{"environment variable", "file"}

// The levels of OpenTelemetry's own log. From theirInformation on, each read of the metrics would write lines.
const (
	theirWarning     = 1
	theirInformation = 4
	// notNumber is an information that is a warning here, because a default is used instead of the value.
	notNumber = "Got invalid value, number value expected."
)

// theirLog is OpenTelemetry's own log.
type theirLog struct{ log *slog.Logger }

// Init implements [logr.LogSink].
func (theirLog) Init(logr.RuntimeInfo) {}

// Enabled implements [logr.LogSink].
func (theirLog) Enabled(level int) bool { return level <= theirInformation }

// Info implements [logr.LogSink].
func (l theirLog) Info(level int, message string, attrs ...any) {
	if level <= theirWarning || message == notNumber {
		l.log.Warn("OpenTelemetry", append([]any{"message", message}, attrs...)...)
	}
}

// Error implements [logr.LogSink].
func (l theirLog) Error(_ error, message string, attrs ...any) {
	line := []any{"message", message}
	for pair := range slices.Chunk(attrs, 2) {
		if name, ok := pair[0].(string); ok && slices.Contains(shown, name) {
			line = append(line, pair...)
		}
	}
	l.log.Error("OpenTelemetry", line...)
}

// WithValues implements [logr.LogSink]. It is not used.
func (l theirLog) WithValues(...any) logr.LogSink { return l }

// WithName implements [logr.LogSink]. It is not used.
func (l theirLog) WithName(string) logr.LogSink { return l }
