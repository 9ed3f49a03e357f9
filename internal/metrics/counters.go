package metrics

import (
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// counters is one counter for each value of a label.
type counters struct {
	label attribute.Key
	// fixed are labels that all of them have.
	fixed []attribute.KeyValue
	byOne table[count]
}

// count is a number with its labels, which are made once.
type count struct {
	n      atomic.Int64
	labels metric.MeasurementOption
}

// start makes the counters of these values, at zero: a rate is only seen of a counter
// that was there before it grew.
func (c *counters) start(values ...string) {
	for _, value := range values {
		c.add(value, 0)
	}
}

func (c *counters) add(value string, n int64) {
	one := c.byOne.get(value)
	if one == nil {
		one = c.byOne.add(value, maxNames, c.make)
	}
	one.n.Add(n)
}

func (c *counters) make(value string) *count {
	return &count{labels: labels(append(slices.Clip(c.fixed), c.label.String(value))...)}
}

func (c *counters) observe(o metric.Observer, instrument metric.Int64Observable) {
	for _, one := range c.byOne.all() {
		o.ObserveInt64(instrument, one.n.Load(), one.labels)
	}
}

func labels(kv ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(kv...))
}
