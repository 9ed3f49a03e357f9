package tracing

import "testing"

func TestTraceID(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for traceparent, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01":                        id,
		"01-" + id + "-00f067aa0ba902b7-01-what-the-future-brings": id,
		"":                   "",
		"00-" + id[1:] + "-": "",
		"000" + id:           "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01": "",
		"00-not a trace, but long enough to be one":               "",
	} {
		if got := TraceID(traceparent); got != want {
			t.Errorf("%q: %q", traceparent, got)
		}
	}
	if n := testing.AllocsPerRun(10, func() { TraceID("00-" + id + "-00f067aa0ba902b7-01") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
