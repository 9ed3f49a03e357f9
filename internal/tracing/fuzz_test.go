package tracing

import (
	"strings"
	"testing"
)

// A trace context that is read is written again with the same meaning, and the log names
// the same trace.
func FuzzParse(f *testing.F) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	for _, seed := range []string{"00-" + id + "01", "00-" + id + "00", "01-" + id + "ff-more", "ff-" + id + "01", "00-" + id + "1", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, traceparent string) {
		sc := Parse(traceparent)
		if !sc.IsValid() {
			return
		}
		again := Parse(Format(sc))
		if again.TraceID() != sc.TraceID() || again.SpanID() != sc.SpanID() || again.IsSampled() != sc.IsSampled() {
			t.Fatalf("%q became %q", traceparent, Format(sc))
		}
		if got := TraceID(traceparent); got != sc.TraceID().String() {
			t.Fatalf("%q: the log names the trace %q", traceparent, got)
		}
	})
}

// A trace context that this package hands on is one to others, too.
func FuzzKnown(f *testing.F) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"
	for _, seed := range []string{"00-" + id + "01", "01-" + id + "ff-more", "ff-" + id + "01", "00-" + id + "01-", "cc-" + id + "09", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, trace string) {
		handed := Known(trace)
		if handed == "" {
			return
		}
		if len(handed) != 55 || TraceID(handed) == "" || !strings.HasPrefix(trace, handed) {
			t.Fatalf("%q became %q", trace, handed)
		}
		if sc := Parse(handed); sc.IsValid() && sc.TraceID().String() != TraceID(handed) {
			t.Fatalf("%q names the trace %q and %q", handed, sc.TraceID(), TraceID(handed))
		}
	})
}
