package redis

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// tries is how often a call that may be repeated is sent.
	tries = 3
	// before is how many words of a call come before its arguments.
	before = 6
	// moves limits the pauses of a call while a cluster moves its slot.
	moves = 20
)

// kinds of calls.
const (
	reads   = iota // changes nothing
	repeats        // may be carried out several times
	sends          // is sent once
)

// call calls a function of a partition, and returns its answer without history and quiet time. It notes the history in told, if
// that is not nil.
func (b *Server) call(ctx context.Context, op, name string, kind, part int, told *told, args ...any) ([]any, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	all := append(make([]any, 0, before+len(args)), "fcall", function(name), 2, b.parts[part].meta, b.parts[part].absent, b.history.remembered(part, b.usual()))
	all = append(all, args...)
	var answer []any
	var err error
	for try, move := 0, 0; ; {
		answer, err = b.send(ctx, op, all)
		again := true
		switch {
		case kind != sends && transient(err):
			try++
		case kind == sends && moving(err) && !strings.Contains(err.Error(), "@user_function"):
			move++
		default:
			again = false
		}
		if !again || try == tries || move == moves || ctx.Err() != nil {
			break
		}
		cas.Pause(ctx, cas.FirstPause)
	}
	if err != nil {
		return nil, 0, classify(op, err, kind != reads)
	}
	history, quiet, rest, ok := opening(answer)
	if !ok {
		return nil, 0, classify(op, errAnswer, kind != reads)
	}
	b.quiet[part].Note(quiet)
	if told != nil {
		told.note(part, history)
	}
	if b.history.note(part, history) {
		b.listenAgain()
	}
	return rest, quiet, nil
}

// opening splits an answer.
func opening(answer []any) (history string, quiet time.Duration, rest []any, ok bool) {
	if len(answer) < 2 {
		return "", 0, nil, false
	}
	history, ok = answer[0].(string)
	ms, isNumber := answer[1].(int64)
	return history, time.Duration(ms) * time.Millisecond, answer[2:], ok && isNumber
}

// send sends a call, and loads the functions if the server does not know them.
func (b *Server) send(ctx context.Context, op string, words []any) (answer []any, err error) {
	if err := b.Ready(); err != nil {
		return nil, cas.Failed(op, err, false)
	}
	if err := beforeSend(ctx); err != nil {
		return nil, err
	}
	stage := "redis_" + op
	ctx, end := b.span(ctx, stage)
	began := time.Now()
	answer, err = b.once(ctx, words)
	if err != nil && strings.HasPrefix(err.Error(), textNoFunction) {
		if err = b.loadLibrary(ctx); err == nil {
			answer, err = b.once(ctx, words)
		} else {
			err = &notSentError{err}
		}
	}
	end(err)
	b.config.Metrics.Statement(ctx, stage, time.Since(began), err)
	if err != nil {
		b.Doubt()
	}
	return answer, err
}

func (b *Server) once(ctx context.Context, words []any) ([]any, error) {
	cmd := goredis.NewSliceCmd(ctx, words...)
	cmd.SetFirstKeyPos(3)
	err := b.client.Process(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

// onlyRecorded gives the client library tracers that make spans only within recorded ones.
type onlyRecorded struct{ trace.TracerProvider }

func (p onlyRecorded) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	return recordedTracer{p.TracerProvider.Tracer(name, options...)}
}

type recordedTracer struct{ trace.Tracer }

func (t recordedTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if !tracing.Recorded(ctx) {
		return ctx, noop.Span{}
	}
	return t.Tracer.Start(ctx, name, options...) //nolint:spancheck // the library ends it
}

//go:embed functions.lua
var source string

// version names this version of the functions, so that sidecars of different versions share a server.
var version = func() string {
	sum := sha256.Sum256([]byte(source))
	return hex.EncodeToString(sum[:4])
}()

var library = "#!lua name=locksidecar_" + version + "\n" + strings.ReplaceAll(source, "VERSION", version)

func function(name string) string { return "locksidecar_" + name + "_" + version }

// loadLibrary loads the functions on each server that takes writes. A server that already has them is no error.
func (b *Server) loadLibrary(ctx context.Context) error {
	return b.each(ctx, func(ctx context.Context, c goredis.Cmdable) error {
		err := c.FunctionLoad(ctx, library).Err()
		if err != nil && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		return err
	})
}
