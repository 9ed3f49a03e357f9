package tracing

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// What is decided before a span is what the SDK decides with the span, by the sampler, and by the app if the sampler follows it.
func TestSampleDecidesAsTheSDK(t *testing.T) {
	const app, calls = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-", 1000
	never, always, half := sdktrace.NeverSample(), sdktrace.AlwaysSample(), sdktrace.TraceIDRatioBased(0.5)
	for name, sampler := range map[string]sdktrace.Sampler{
		"never": never, "always": always, "half": half,
		"follows, never": sdktrace.ParentBased(never), "follows, always": sdktrace.ParentBased(always), "follows, half": sdktrace.ParentBased(half),
	} {
		tracer := New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)))
		tracer.SampleBy(sampler)
		for _, header := range []string{"", "malformed", "00-" + app + "00", "00-" + app + "01", "00-" + app + "02", "00-" + app + "03", "01-" + app + "fe", "01-" + app + "ff-more"} {
			may, made, sdk := 0, 0, 0
			for range calls {
				if _, span := tracer.tracer.Start(Extract(context.Background(), header, ""), "lock.acquire"); span.IsRecording() {
					sdk++
				}
				root, ok := tracer.Sample([]byte(header))
				if !ok {
					continue
				}
				may++
				_, span := tracer.Begin(Extract(root, header, ""), "lock.acquire", trace.SpanKindServer)
				if !span.IsRecording() {
					continue
				}
				made++
				if parent := span.(sdktrace.ReadOnlySpan).Parent(); parent.IsValid() != Parse(header).IsValid() {
					t.Fatalf("%s, %q: the parent is %v", name, header, parent)
				}
			}
			const spread = calls / 5 // twelve times the standard deviation, where chance decides
			if made < sdk-spread || made > sdk+spread || (made == 0) != (sdk == 0) || (made == calls) != (sdk == calls) {
				t.Errorf("%s, %q: of %d calls %d are recorded, and %d by the SDK", name, header, calls, made, sdk)
			}
			if root := !Parse(header).IsValid(); root && may != made {
				t.Errorf("%s, %q: of %d sampled roots the SDK records %d", name, header, may, made)
			}
		}
	}
}
