package fault

import "time"

var networkKinds = []Kind{
	{Name: "latency", part: sidecar, weight: 1, least: 2 * time.Second, most: 6 * time.Second, strike: latency},
	{Name: "narrow", part: sidecar, weight: 1, least: 2 * time.Second, most: 5 * time.Second, strike: narrow},
	{Name: "cut", part: sidecar, weight: 1, least: 500 * time.Millisecond, most: 6 * time.Second, strike: cut},
	{Name: "flap", part: sidecar, weight: 1, least: 2 * time.Second, most: 5 * time.Second, strike: flap},
	{Name: "half-open", part: sidecar, weight: 1, least: 2 * time.Second, most: 8 * time.Second, strike: halfOpen},
	{Name: "unheard", part: sidecar, weight: 1, least: 2 * time.Second, most: 8 * time.Second, strike: unheard},
}

// spoil adds a toxic while the fault lasts and counts the probes that it bit.
func (s *strike) spoil(kind, stream string, attributes map[string]any, bit func(took time.Duration, err error) bool, limit time.Duration) (int, error) {
	heal, err := s.sidecar().Net.Spoil(kind, stream, attributes)
	if err != nil {
		return 0, err
	}
	bites := s.during(func() bool { return bit(s.sidecar().Net.Probe(limit)) })
	return healed(bites, heal())
}

// latency delays all answers, each by another time.
func latency(s *strike) (int, error) {
	least := between(s.rng, 20*time.Millisecond, 400*time.Millisecond)
	attributes := map[string]any{"latency": (2 * least).Milliseconds(), "jitter": least.Milliseconds()}
	slow := func(took time.Duration, _ error) bool { return took >= least }
	return s.spoil("latency", "downstream", attributes, slow, 5*time.Second)
}

// narrow lets few bytes pass in a second.
func narrow(s *strike) (int, error) {
	const perSecond = 2 // KB
	least := time.Duration(s.sidecar().Net.Greeting) * time.Second / (perSecond * 1000)
	slow := func(took time.Duration, _ error) bool { return took >= least }
	return s.spoil("bandwidth", "downstream", map[string]any{"rate": perSecond}, slow, 5*time.Second)
}

// halfOpen swallows all bytes in both directions: nobody is told that the other is gone.
func halfOpen(s *strike) (int, error) {
	heal, err := s.sidecar().Net.Spoil("timeout", "upstream", map[string]any{"timeout": 0})
	if err != nil {
		return 0, err
	}
	bites, err := unheard(s)
	return healed(bites, err, heal())
}

// unheard swallows answers: the store carries requests out, and the sidecar never learns of it.
func unheard(s *strike) (int, error) {
	broken := func(_ time.Duration, err error) bool { return err != nil }
	return s.spoil("timeout", "downstream", map[string]any{"timeout": 0}, broken, 500*time.Millisecond)
}

// cut closes all connections and refuses new ones.
func cut(s *strike) (int, error) {
	net := s.sidecar().Net
	bites := net.Break()
	bites += s.during(func() bool {
		_, err := net.Probe(time.Second)
		return err != nil
	})
	return healed(bites, net.Mend())
}

// flap closes all connections again and again.
func flap(s *strike) (int, error) {
	bites := s.during(func() bool {
		s.rest(between(s.rng, 0, 400*time.Millisecond))
		return s.sidecar().Net.CutAll() > 0
	})
	return bites, nil
}
