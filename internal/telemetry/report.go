package telemetry

import (
	"context"
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

// A collector that is away fails each batch: a few errors are shown at once, then one in each pause.
const (
	errorBurst = 3
	errorPause = 10 * time.Second
	// maxError is how much of one is shown: the collector's answer stands in it.
	maxError = 1 << 10
)

func report(log *slog.Logger) {
	limit, silent := rate.NewLimiter(rate.Every(errorPause), errorBurst), atomic.Int64{}
	handleErrors(func(err error) {
		if errors.Is(err, resource.ErrPartialResource) {
			return // said at the start, and nothing to do with delivery
		}
		if !limit.Allow() {
			silent.Add(1)
			return
		}
		text := hide(err.Error())
		log.Warn("telemetry has a problem, locks go on", "error", text[:min(len(text), maxError)], "errors_left_out", silent.Swap(0))
	})
	otel.SetLogger(logr.FromSlogHandler(levels{log.Handler()}))
}

// userinfo and query are where a URL may have a password, or a token.
var userinfo, query = regexp.MustCompile(`//[^@\s]*@`), regexp.MustCompile(`\?[^\s"]+`)

func hide(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "//…@"), "?…")
}

// shown are attributes of their errors that are never secret. Others may have a part of a header, or of
// a URL with a password.
var shown = []string{"environment variable", "file"}

// levels translates the levels of OpenTelemetry's own log: 1 is a warning, 4 information, 8 for
// developers, negated by logr. At the latter two, each read of the metrics would write them all.
type levels struct{ slog.Handler }

const (
	theirWarning     slog.Level = -1
	theirInformation slog.Level = -4
	// notNumber is the one information that is a warning to us: a default is used instead.
	notNumber = "Got invalid value, number value expected."
)

func (l levels) level(their slog.Level) slog.Level {
	if their >= slog.LevelError {
		return slog.LevelError
	}
	return slog.LevelWarn
}

// Enabled implements [slog.Handler].
func (l levels) Enabled(ctx context.Context, their slog.Level) bool {
	return their >= theirInformation && l.Handler.Enabled(ctx, l.level(their))
}

// Handle implements [slog.Handler].
func (l levels) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < theirWarning && r.Message != notNumber {
		return nil
	}
	line := slog.NewRecord(r.Time, l.level(r.Level), "OpenTelemetry", r.PC)
	line.AddAttrs(slog.String("message", r.Message))
	r.Attrs(func(a slog.Attr) bool {
		if r.Level < slog.LevelError || slices.Contains(shown, a.Key) {
			line.AddAttrs(a)
		}
		return true
	})
	return l.Handler.Handle(ctx, line)
}

// WithAttrs implements [slog.Handler].
func (l levels) WithAttrs(attrs []slog.Attr) slog.Handler { return levels{l.Handler.WithAttrs(attrs)} }

// WithGroup implements [slog.Handler].
func (l levels) WithGroup(name string) slog.Handler { return levels{l.Handler.WithGroup(name)} }
