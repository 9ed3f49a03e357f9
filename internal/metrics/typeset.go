package metrics

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/locksidecar/locksidecar/store"
)

// Apps choose the types of keys, so their number and length are limited here: the first
// maxTypes that are seen have figures of their own, the others share them.
const (
	maxTypes     = 50
	maxTypeBytes = 64
)

// typed is what is counted for each type of keys.
type typed struct {
	set                      attribute.Set
	labels                   metric.MeasurementOption
	grantedLabels            metric.MeasurementOption
	releasedLabels           metric.MeasurementOption
	acquires, releases, lost counters
	// waits has one value for each acquire that was granted, so acquires does not count
	// these.
	waits, holds *histogram

	// What each call changes stands apart from what each call only reads, or each change
	// would take all of it away from the other processors.
	_                 [cacheLine]byte
	waiting, released atomic.Int64
	_                 [cacheLine]byte
}

const cacheLine = 64

// of finds the figures of a key's type.
func (l *Locks) of(key string) *typed { return l.named(store.TypeOf(key)) }

// named finds the figures of a type.
func (l *Locks) named(name string) *typed {
	name = label(name)
	if t := l.types.get(name); t != nil {
		return t
	}
	return l.types.add(name, maxTypes, l.newType)
}

// label is what a type is called.
func label(name string) string {
	switch {
	case name == "":
		return none
	case len(name) > maxTypeBytes:
		return store.Others
	default:
		return name
	}
}

func (l *Locks) newType(name string) *typed {
	own := typeLabel.String(name)
	fixed := []attribute.KeyValue{own}
	t := &typed{
		set: attribute.NewSet(own), labels: labels(own),
		grantedLabels: labels(own, resultLabel.String(Granted)), releasedLabels: labels(own, resultLabel.String(Released)),
		acquires: counters{label: resultLabel, fixed: fixed},
		releases: counters{label: resultLabel, fixed: fixed},
		lost:     counters{label: reasonLabel, fixed: fixed},
		waits:    newHistogram(lockBounds, l.exemplars),
		holds:    newHistogram(lockBounds, l.exemplars),
	}
	t.lost.start(lostReasons...)
	return t
}
